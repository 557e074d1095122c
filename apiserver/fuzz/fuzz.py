"""Fuzzes the API of a running node by its own description.

    scafo dev --json > node.json &
    pip install schemathesis cryptography
    python fuzz.py node.json [options of `schemathesis run`]

Fails on a status, content type or schema that `/openapi.json` does not name, on data that breaks a schema and is taken, and
on a 5xx. The node is changed at random: use one that nobody needs, with an application named `shop` deployed on it, so that
more than the refusals of missing applications is seen.
"""

import base64
import json
import os
import random
import sys
import time

NODE = "SCAFO_FUZZED_NODE"
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

    def token(self):
        now = int(time.time())
        claims = {"sub": self.id, "aud": "scafo-node", "iat": now, "exp": now + 60, "jti": base64url(os.urandom(16))}
        parts = [{"alg": "EdDSA", "kid": self.id, "typ": "JWT"}, claims]
        signed = ".".join(base64url(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{base64url(self.key.sign(signed.encode()))}"


def node(path):
    with open(path) as file:
        return json.loads(file.readline())


def install():
    import schemathesis

    signer = Signer(node(os.environ[NODE]))

    @schemathesis.hook
    def before_call(_context, case, _arguments):
        by_ingress = case.path.startswith(("/v1/storage", "/v1/ingress"))
        case.headers = case.headers or {}
        case.headers["authorization"] = f"Bearer {signer.ingress if by_ingress else signer.token()}"
        deletes = case.method == "DELETE" and case.path == "/v1/applications/{name}"
        if case.path.startswith("/v1/applications/{name}") and not deletes and random.random() < 0.7:
            case.path_parameters["name"] = "shop"


def main():
    path, *options = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {**os.environ, NODE: os.path.abspath(path), "SCHEMATHESIS_HOOKS": "fuzz", "PYTHONPATH": here}
    command = [sys.executable, "-m", "schemathesis.cli", "run", node(path)["api"] + "/openapi.json"]
    command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--request-timeout", "20", *options]
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
else:
    install()
