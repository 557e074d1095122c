#!/usr/bin/env bash
# Makes a Debian root with systemd in it, for the test that installs the package and drives it there; prints its path. Kept outside of
# the checkout, made once. Needs root, debootstrap and the mirror that apt uses.
set -euo pipefail
tools=${SCAFO_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/scafo/tools}
mkdir -p "$tools"
# Raise it when what is asked for below changes.
root=$tools/systemd-root-2
exec 9>"$tools/.systemd-root.lock"
flock 9
if [ ! -e "$root" ]; then
    [ "$(id -u)" = 0 ] || { echo "error: only root can make a system root" >&2; exit 1; }
    if ! command -v debootstrap >/dev/null || ! command -v systemd-nspawn >/dev/null; then
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap systemd-container >&2
    fi
    mirror=$(grep -hoE '^(URIs: *|deb (\[[^]]*\] )?)https?://[^ ]*/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
        grep -oE 'https?://[^ ]*' | head -1 || true)
    rm -rf "$root.new" "$tools"/systemd-root-*
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps,nftables,ca-certificates bookworm "$root.new" \
        "${mirror:-http://deb.debian.org/debian}" >&2
    rm -rf "$root.new"/var/cache/apt/archives/*.deb "$root.new"/var/lib/apt/lists/*
    # No login prompt, no timers of a machine that lives for long.
    for unit in console-getty.service getty@tty1.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer; do
        ln -sf /dev/null "$root.new/etc/systemd/system/$unit"
    done
    mv "$root.new" "$root"
fi
echo "$root"
