#!/usr/bin/env bash
# Packs the built executables into a Debian package: packaging/deb.sh [--bin target/debug] [--out target].
# Needs dpkg-deb and binutils. Prints the path of the package. --fast packs without compression, for tests.
set -euo pipefail
# What is packed has the modes that it is installed with, whoever packs it.
umask 022
here=$(cd "$(dirname "$0")" && pwd)
bin="$here/../target/debug" out="$here/../target" compression=(-Zxz -z1)
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=${2:?--bin DIR}; shift 2 ;;
        --out) out=${2:?--out DIR}; shift 2 ;;
        --fast) compression=(-Znone); shift ;;
        *) echo "usage: deb.sh [--bin DIR] [--out DIR] [--fast]" >&2; exit 2 ;;
    esac
done
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
arch=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
"$here/stage.sh" "$bin" "$root"
# The newest symbol version of the C library that a program asks for.
libc=$(readelf -VW "$root"/usr/bin/* "$root"/usr/lib/scafo/* | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1)

# dpkg says what happens in its own words (Debian Policy, section 6.5); the scripts that both packages share say the rest.
script() {
    install -D -m 0755 /dev/stdin "$root/DEBIAN/$1"
}
{
    printf '#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\nupgrade=$2\n'
    cat "$here/scripts/after-install"
} | script postinst
{
    printf '#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n'
    cat "$here/scripts/before-removal"
} | script prerm
{
    printf '#!/bin/sh\nset -e\n'
    cat "$here/scripts/after-removal"
    # The node's state; a bucket elsewhere is not touched.
    printf 'if [ "$1" = purge ]; then\n    rm -rf /var/lib/scafo /etc/scafo\nfi\n'
} | script postrm
echo /etc/scafo/scafo.toml > "$root/DEBIAN/conffiles"
cat > "$root/DEBIAN/control" <<CONTROL
Package: scafo
Version: $version
Architecture: $arch
Maintainer: the scafo authors <scafo@example.invalid>
Section: admin
Priority: optional
Depends: libc6 (>= ${libc#GLIBC_}), libgcc-s1, systemd
Recommends: dbus, nftables
Description: self-hosted fleet control for Workers-style applications
 One node of a fleet: its supervisor, registry, API, routing and ingress. Applications
 run in celld, which is installed on its own.
CONTROL
mkdir -p "$out"
package="$out/scafo_${version}_$arch.deb"
dpkg-deb --root-owner-group "${compression[@]}" --build "$root" "$package" >/dev/null
echo "$package"
