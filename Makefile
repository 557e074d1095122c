# `make demo` and `make test` are all that a fresh machine needs; the rest is for working on scafo.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
CARGO_FLAGS ?= --locked

.PHONY: demo test test-long bench build tools test-tools check fmt clean

## Shows a whole local node: build, start, deploy examples/counter, three requests, the routes. ONCE=1 ends after that.
demo: build
	@scripts/demo.sh

## Everything that CI runs.
test: check build test-tools
	cargo test $(CARGO_FLAGS) --workspace --no-fail-fast
	CARGO_FLAGS='$(CARGO_FLAGS)' scripts/fuzz.sh
	scripts/caddy-tests.sh
	DEMO_API=127.0.0.1:0 DEMO_INGRESS=127.0.0.1:0 ONCE=1 scripts/demo.sh

## The same tests, longer: more races, more kills, more seeds.
test-long: build test-tools
	SCAFO_TEST_LONG=1 cargo test $(CARGO_FLAGS) --workspace --no-fail-fast
	SCAFO_FUZZ_SECONDS=600 CARGO_FLAGS='$(CARGO_FLAGS)' scripts/fuzz.sh

## Speed, side by side with what it is compared to.
bench: tools
	scripts/bench-tools.sh
	cargo build $(CARGO_FLAGS) --workspace --release
	target/release/scafo-bench

build: tools
	cargo build $(CARGO_FLAGS) --workspace

## What the development runtime drives: workerd and esbuild, at the versions of runtime/package-lock.json.
tools:
	@scripts/tools.sh

## What the tests run against: S3 stores, Traefik, Caddy with our modules, an ACME server. Kept outside of the checkout.
test-tools:
	@scripts/test-tools.sh

check: tools
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || rustup component add rustfmt clippy
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

fmt:
	cargo fmt --all

clean:
	cargo clean
	rm -rf runtime/node_modules .scafo
