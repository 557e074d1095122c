#!/usr/bin/env bash
# Vets and tests the Caddy modules, with the Go on PATH or the one that test-tools.sh brought.
set -euo pipefail
cd "$(dirname "$0")/../ingress/caddy"

tools=${SCAFO_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/scafo/tools}
go=$(command -v go) || go=$tools/bin/go
unformatted=$("$(dirname "$(readlink -f "$go")")/gofmt" -l . 2>/dev/null || true)
if [ -n "$unformatted" ]; then
    echo "error: not formatted: $unformatted" >&2
    exit 1
fi
"$go" vet ./...
"$go" test ./...
