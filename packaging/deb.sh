#!/usr/bin/env bash
# Packs the built executables into a Debian package: packaging/deb.sh [--bin target/debug] [--out target].
# Needs dpkg-deb. Prints the path of the package. --fast packs without compression, for tests.
set -euo pipefail
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
daemons=(scafo-registryd scafo-routerd scafo-apiserver scafo-ingressd scafo-bucketd)
for program in scafo "${daemons[@]}"; do
    [ -x "$bin/$program" ] || { echo "$bin/$program is not there; build it first: cargo build --workspace" >&2; exit 1; }
done
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
arch=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# Not the mode of a temporary directory: this becomes the mode of / in the package.
chmod 0755 "$root"

install -D -m 0755 --strip "$bin/scafo" "$root/usr/bin/scafo"
for daemon in "${daemons[@]}"; do
    install -D -m 0755 --strip "$bin/$daemon" "$root/usr/lib/scafo/$daemon"
done
install -D -m 0644 -t "$root/usr/lib/systemd/system" "$here/systemd/"*
install -D -m 0644 "$here/sysusers.d/scafo.conf" "$root/usr/lib/sysusers.d/scafo.conf"
install -D -m 0644 "$here/tmpfiles.d/scafo.conf" "$root/usr/lib/tmpfiles.d/scafo.conf"
install -D -m 0644 "$here/etc/scafo.toml" "$root/etc/scafo/scafo.toml"
mkdir -p "$root/usr/share/bash-completion/completions" "$root/usr/share/man/man1"
"$bin/scafo" completions bash > "$root/usr/share/bash-completion/completions/scafo"
"$bin/scafo" man --out "$root/usr/share/man/man1" >/dev/null
gzip -9n "$root"/usr/share/man/man1/*

install -D -m 0755 -t "$root/DEBIAN" "$here/debian/postinst" "$here/debian/prerm" "$here/debian/postrm"
echo /etc/scafo/scafo.toml > "$root/DEBIAN/conffiles"
cat > "$root/DEBIAN/control" <<CONTROL
Package: scafo
Version: $version
Architecture: $arch
Maintainer: the scafo authors <scafo@example.invalid>
Section: admin
Priority: optional
Depends: libc6, systemd
Recommends: dbus, nftables
Description: self-hosted fleet control for Workers-style applications
 One node of a fleet: its supervisor, registry, API, routing and ingress. Applications
 run in celld, which is installed on its own.
CONTROL
mkdir -p "$out"
package="$out/scafo_${version}_$arch.deb"
dpkg-deb --root-owner-group "${compression[@]}" --build "$root" "$package" >/dev/null
echo "$package"
