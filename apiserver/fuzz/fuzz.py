"""Fuzzes the API of a running node by its own description.

    scafo dev --json > node.json &
    make test-tools
    ~/.cache/scafo/tools/schemathesis/bin/python fuzz.py node.json SEED [options of `schemathesis run`]

Fails on a status, content type or schema that `/openapi.json` does not name, on data that breaks a schema and is taken, and
on a 5xx. The node is changed at random: use one that nobody needs, with applications `shop` and `other` on it, so that
more than the refusals of missing applications is seen.
"""

import base64
import json
import os
import random
import sys
import time

NODE = "SCAFO_FUZZED_NODE"
SEED = "SCAFO_FUZZ_SEED"
# A file for the method, path and status of each answer, a line each; nothing is written without it.
SEEN = "SCAFO_FUZZ_SEEN"
# What is valid by its schema may still be refused: a host of the platform domain, one's own key, a header that decodes to no
# metadata. So there is no check that it is accepted. Checks of authentication take the header out that the hook puts back.
CHECKS = ",".join([
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
])


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Signer:
    """Signs a fresh token for each request: each is accepted once."""

    def __init__(self, node):
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        self.id = node["operatorId"]
        with open(node["operatorKey"], "rb") as file:
            self.key = load_pem_private_key(file.read(), None)
        with open(node["ingressTokenFile"]) as file:
            self.ingress = file.read().strip()
        self.used = self.fresh()

    def token(self):
        self.used = self.fresh()
        return self.used

    def fresh(self):
        now = int(time.time())
        claims = {"sub": self.id, "aud": "scafo-node", "iat": now, "exp": now + 60, "jti": base64url(os.urandom(16))}
        parts = [{"alg": "EdDSA", "kid": self.id, "typ": "JWT"}, claims]
        signed = ".".join(base64url(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{base64url(self.key.sign(signed.encode()))}"


def node(path):
    with open(path) as file:
        return json.loads(file.readline())


def spell(document):
    """The canonical form of metadata, as the header carries it."""
    return base64url(json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


METADATA = [
    {},
    {"replicas": 1},
    {"replicas": "all", "nodeSelector": {}},
    {"nodeSelector": None, "replicas": None, "unknown": [1.5]},
    {"source": {"provider": "github", "repo": "acme/shop", "ref": "refs/heads/main", "commit": "c0ffee"}},
    {"source": {"provider": "github"}},
    {"oidc": None},
]
HOSTS = ["shop.example", "www.shop.example", "a.b.shop.example", "shop.example.", "x.dev.localhost", "1.2.3.4"]


def public_key(random):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(random.randbytes(32)).public_key()
    return {"kty": "OKP", "crv": "Ed25519", "x": base64url(public.public_bytes_raw())}


def is_good(case, part):
    """Whether a part of the request is meant to be valid: what is bad on purpose has to stay as it is."""
    component = next((one for where, one in case.meta.components.items() if where.value == part), None)
    return component is None or component.mode.is_positive


def deepen(case, random, deploys):
    """Puts something that exists, or is valid beyond its schema, in the place of what was generated."""
    parameters, operators = case.path_parameters or {}, case.path.startswith("/v1/operators")
    if is_good(case, "path"):
        deletes = case.method == "DELETE" and case.path == "/v1/applications/{name}"
        if "name" in parameters and case.path.startswith("/v1/applications") and not deletes:
            # What is blocked or retired takes no deploys and claims nothing, so that is another one.
            stops = case.path.endswith(("/block", "/unblock", "/retire", "/unretire"))
            parameters["name"] = "other" if stops else "shop"
        if "id" in parameters and case.path.startswith("/v1/deploys") and deploys:
            parameters["id"] = random.choice(deploys)
        if "host" in parameters:
            parameters["host"] = random.choice(HOSTS)
        if "id" in parameters and operators:
            parameters["id"] = f"op-{random.randrange(4)}"
    if operators and is_good(case, "body") and isinstance(case.body, dict):
        case.body.update(id=f"op-{random.randrange(4)}", publicKey=public_key(random))
        case.body.pop("supersedes", None)
    if case.path.endswith("/deploys") and is_good(case, "header"):
        case.headers["x-scafo-deploy"] = spell(random.choice(METADATA))


def install():
    import schemathesis

    signer = Signer(node(os.environ[NODE]))
    chance, deploys = random.Random(int(os.environ[SEED])), []

    @schemathesis.hook
    def before_call(_context, case, _arguments):
        by_ingress = case.path.startswith(("/v1/storage", "/v1/ingress"))
        case.headers = case.headers or {}
        good = [signer.token, lambda: signer.ingress][by_ingress]
        bad = [signer.token, lambda: signer.ingress][not by_ingress]
        # Now and then with the other kind of token, with one that was used, or with none that is one.
        token = chance.choices([good, bad, lambda: signer.used, lambda: "x.y.z"], [92, 3, 3, 2])[0]()
        case.headers["authorization"] = f"Bearer {token}"
        if chance.random() < 0.7:
            deepen(case, chance, deploys)

    seen = open(os.environ[SEEN], "a", buffering=1) if SEEN in os.environ else None

    @schemathesis.hook
    def after_call(_context, case, response):
        if response.status_code == 202:
            deploys.append(json.loads(response.content)["id"])
        if seen:
            seen.write(f"{case.method} {case.path} {response.status_code}\n")


def main():
    path, seed, *options = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    hooks = {NODE: os.path.abspath(path), SEED: seed, "SCHEMATHESIS_HOOKS": "fuzz"}
    environment = {**os.environ, **hooks, "PYTHONPATH": here, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "schemathesis.cli", "run", node(path)["api"] + "/openapi.json"]
    command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--request-timeout", "60", "--seed", seed, *options]
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main()
else:
    install()
