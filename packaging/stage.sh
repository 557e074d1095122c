#!/usr/bin/env bash
# Lays out under ROOT what every package installs: packaging/stage.sh BIN ROOT, with BIN the directory of the built executables.
set -euo pipefail
# What is packed has the modes that it is installed with, whoever packs it.
umask 022
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:?BIN} root=${2:?ROOT}
daemons=(scafo-registryd scafo-routerd scafo-apiserver scafo-ingressd scafo-bucketd)
for program in scafo "${daemons[@]}"; do
    [ -x "$bin/$program" ] || { echo "$bin/$program is not there; build it first: cargo build --workspace" >&2; exit 1; }
done
# Not the mode of a temporary directory: this becomes the mode of / in the package.
mkdir -p "$root"
chmod 0755 "$root"

install -D -m 0755 --strip "$bin/scafo" "$root/usr/bin/scafo"
for daemon in "${daemons[@]}"; do
    install -D -m 0755 --strip "$bin/$daemon" "$root/usr/lib/scafo/$daemon"
done
install -D -m 0644 -t "$root/usr/lib/systemd/system" "$here/systemd/"*
install -D -m 0644 "$here/sysusers.d/scafo.conf" "$root/usr/lib/sysusers.d/scafo.conf"
install -D -m 0644 "$here/tmpfiles.d/scafo.conf" "$root/usr/lib/tmpfiles.d/scafo.conf"
install -D -m 0644 "$here/etc/scafo.toml" "$root/etc/scafo/scafo.toml"
share="$root/usr/share"
mkdir -p "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d" "$share/man/man1"
"$bin/scafo" completions bash > "$share/bash-completion/completions/scafo"
"$bin/scafo" completions zsh > "$share/zsh/vendor-completions/_scafo"
"$bin/scafo" completions fish > "$share/fish/vendor_completions.d/scafo.fish"
"$bin/scafo" man --out "$share/man/man1" >/dev/null
gzip -9n "$share"/man/man1/*
