#!/usr/bin/env bash
# Gives each fuzz target SCAFO_FUZZ_SECONDS (60 unless said otherwise), shared out among its properties; as many targets at once as
# there are processors. The inputs begin with those of apiserver/fuzz/corpus. A target that breaks prints the smallest input.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SCAFO_FUZZ_SECONDS:-60}
targets=(
    "token scafo-core token::tests::properties"
    "header scafo-core deploy::tests::properties"
    "host scafo-core domain::tests::properties"
    "archive scafo-apiserver deploy::unpack::tests::properties"
)

# The test executables, by package. Of the whole workspace, because a part of it would be built anew with other features.
said=$(cargo test ${CARGO_FLAGS:---locked} --workspace --lib --no-run 2>&1) || {
    echo "$said" >&2
    exit 1
}
built=$(sed -nE 's/.*unittests src\/lib\.rs \((.*)\)$/\1/p' <<<"$said")

target() {
    local name=$1 executable properties each
    executable=$(grep "/${2//-/_}-" <<<"$built")
    properties=$("$executable" --list "$3" 2>/dev/null | grep -c ': test$')
    each=$(((seconds + properties - 1) / properties))
    echo "fuzzing $name: $properties properties, $each s each"
    SCAFO_FUZZ_SECONDS=$each "$executable" --test-threads 1 "$3" >"$log/$name" 2>&1 || {
        cat "$log/$name"
        echo "error: the target $name is broken; mend it and keep the input in apiserver/fuzz/corpus/$name" >&2
        return 1
    }
}
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
export -f target
export built seconds log
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; target $1' - {}
echo "every target held for $seconds s"
