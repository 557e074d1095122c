#!/usr/bin/env bash
# Packs the built executables into an RPM package: packaging/rpm.sh [--bin target/debug] [--out target] [--release 1].
# Needs rpmbuild. Prints the path of the package. --fast packs without compression, for tests.
set -euo pipefail
# What is packed has the modes that it is installed with, whoever packs it.
umask 022
here=$(cd "$(dirname "$0")" && pwd)
bin="$here/../target/debug" out="$here/../target" release=1 compression=w3.zstdio
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=${2:?--bin DIR}; shift 2 ;;
        --out) out=${2:?--out DIR}; shift 2 ;;
        --release) release=${2:?--release N}; shift 2 ;;
        --fast) compression=w0.ufdio; shift ;;
        *) echo "usage: rpm.sh [--bin DIR] [--out DIR] [--release N] [--fast]" >&2; exit 2 ;;
    esac
done
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
"$here/stage.sh" "$bin" "$top/stage"
# Where the zsh of distributions with rpm looks.
mv "$top/stage/usr/share/zsh/vendor-completions" "$top/stage/usr/share/zsh/site-functions"

# rpm counts the installed versions that there will be; the scripts that both packages share say the rest.
spec="$top/scafo.spec"
{
    cat "$here/rpm/scafo.spec"
    printf '\n%%post\nset -e\nupgrade=\nif [ "$1" -gt 1 ]; then upgrade=yes; fi\n'
    cat "$here/scripts/after-install"
    printf '\n%%preun\nset -e\n[ "$1" = 0 ] || exit 0\n'
    cat "$here/scripts/before-removal"
    printf '\n%%postun\nset -e\n'
    cat "$here/scripts/after-removal"
} >"$spec"
mkdir -p "$out"
# It says what it does on both streams.
if ! rpmbuild -bb --quiet --define "_topdir $top" --define "_rpmdir $top/built" --define "_binary_payload $compression" \
    --define "scafo_version $version" --define "scafo_release $release" --define "scafo_stage $top/stage" "$spec" \
    >"$top/said" 2>&1; then
    cat "$top/said" >&2
    exit 1
fi
built=("$top"/built/*/scafo-*.rpm)
mv "${built[0]}" "$out/"
echo "$out/${built[0]##*/}"
