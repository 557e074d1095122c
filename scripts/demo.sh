#!/usr/bin/env bash
# Starts a whole local node, deploys examples/counter and asks it three times through the ingress.
set -euo pipefail
cd "$(dirname "$0")/.."

scafo=target/debug/scafo
if [ -n "${ONCE:-}" ]; then
    state=$(mktemp -d)
else
    state=${SCAFO_STATE_DIR:-.scafo}
fi
ready=$(mktemp)
node=

finish() {
    if [ -n "$node" ] && kill -0 "$node" 2>/dev/null; then
        kill -TERM "$node"
        wait "$node" || true
    fi
    rm -f "$ready"
    if [ -n "${ONCE:-}" ]; then rm -rf "$state"; fi
}
trap finish EXIT
trap 'exit 130' INT TERM

"$scafo" dev --json --state-dir "$state" \
    --api-listen "${DEMO_API:-127.0.0.1:7400}" --ingress-listen "${DEMO_INGRESS:-127.0.0.1:8080}" >"$ready" &
node=$!
for _ in $(seq 600); do
    [ -s "$ready" ] && break
    kill -0 "$node" 2>/dev/null || { wait "$node" || true; echo "error: the node did not start (see above)" >&2; exit 1; }
    sleep 0.1
done
[ -s "$ready" ] || { echo "error: the node was not ready within a minute" >&2; exit 1; }

# Node.js is here anyway; curl may not be.
ask() {
    node -e '
        const [, base, host] = process.argv;
        const { hostname, port } = new URL(base);
        const request = require("http").get({ hostname, port, path: "/", headers: { host }, timeout: 10000 }, (answer) => {
            let body = "";
            answer.on("data", (piece) => (body += piece));
            answer.on("end", () => { process.stdout.write(body); process.exitCode = answer.statusCode === 200 ? 0 : 1; });
        });
        request.on("timeout", () => request.destroy(new Error("no answer within 10 s")));
        request.on("error", (error) => { console.error(`error: ${error.message}`); process.exitCode = 1; });
    ' "$1" "$2"
}
member() { node -e 'process.stdout.write(JSON.parse(require("fs").readFileSync(process.argv[1], "utf8"))[process.argv[2]])' "$ready" "$1"; }
ingress=$(member ingress)
host=counter.$(member domain)

"$scafo" deploy examples/counter --state-dir "$state"
echo
expected=
for _ in 1 2 3; do
    answer=$(ask "$ingress" "$host")
    echo "GET http://$host/  →  $answer"
    number=$(grep -oE '[0-9]+' <<<"$answer" | head -1)
    if [ -n "$expected" ] && [ "$number" != "$expected" ]; then
        echo "error: expected the count to be $expected" >&2
        exit 1
    fi
    expected=$((number + 1))
done
echo
"$scafo" routes --state-dir "$state"

if [ -z "${ONCE:-}" ]; then
    echo
    echo "The node stays up until Ctrl-C. Try: curl -H 'Host: $host' $ingress/"
    wait "$node"
fi
