#!/usr/bin/env bash
# Makes a Debian root with systemd in it, for the test that installs the packages and drives them there; prints its path. Kept outside of
# the checkout, made once. Needs root, debootstrap and the mirror that apt uses. Brings what packs an RPM package, too.
set -euo pipefail
tools=${SCAFO_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/scafo/tools}
mkdir -p "$tools"
# Raise it when what is asked for below changes.
root=$tools/systemd-root-3
exec 9>"$tools/.systemd-root.lock"
flock 9
missing=()
command -v debootstrap >/dev/null || missing+=(debootstrap)
command -v systemd-nspawn >/dev/null || missing+=(systemd-container)
command -v rpmbuild >/dev/null || missing+=(rpm)
if [ ! -e "$root" ] || [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || { echo "error: only root can make a system root and install ${missing[*]}" >&2; exit 1; }
fi
if [ ${#missing[@]} -gt 0 ]; then
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
fi
if [ ! -e "$root" ]; then
    mirror=$(grep -hoE '^(URIs: *|deb (\[[^]]*\] )?)https?://[^ ]*/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
        grep -oE 'https?://[^ ]*' | head -1 || true)
    rm -rf "$root.new" "$tools"/systemd-root-*
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps,nftables,ca-certificates,rpm bookworm "$root.new" \
        "${mirror:-http://deb.debian.org/debian}" >&2
    rm -rf "$root.new"/var/cache/apt/archives/*.deb "$root.new"/var/lib/apt/lists/*
    # No login prompt, no timers of a machine that lives for long.
    for unit in console-getty.service getty@tty1.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer; do
        ln -sf /dev/null "$root.new/etc/systemd/system/$unit"
    done
    mv "$root.new" "$root"
fi
echo "$root"
