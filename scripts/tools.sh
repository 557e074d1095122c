#!/usr/bin/env bash
# Installs the npm packages of the development runtime. Does nothing, and asks no registry, when they are there already.
set -euo pipefail
cd "$(dirname "$0")/../runtime"

for command in cargo node npm cc; do
    command -v "$command" >/dev/null || {
        echo "error: $command is not on PATH" >&2
        echo "hint: install Rust (with a C compiler) and Node.js 20 or later, then run this again" >&2
        exit 1
    }
done

wanted=$(sha256sum package-lock.json | cut -d' ' -f1)
stamp=node_modules/.scafo-lock
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ]; then
    exit 0
fi
npm ci --prefer-offline --no-audit --no-fund --loglevel=error
echo "$wanted" >"$stamp"
