# Everything a developer runs. Needs Rust, make and bash; no root. Kept to GNU make 3.81 and bash 3.2, which macOS has.
#
# A Redis server is found or fetched by scripts/find-redis.sh; REDIS_SERVER=/path/to/redis-server overrides it.

SHELL := /bin/bash
CARGO ?= cargo
RELEASE := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)/release

.DEFAULT_GOAL := help
.PHONY: help demo dev build test chaos soak mutants lint fmt bench manifests

help: ## Shows these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## Three nodes, 1,000 jobs, kill -9 and worse, and a verdict: builds and then takes about a minute
	@scripts/find-redis.sh >/dev/null
	@$(CARGO) build --release -p punctual-node -p punctual-tests --bin punctual --bin demo
	@exec "$(RELEASE)/demo"

dev: ## A private Redis and one node on it, until Ctrl-C; the data stay in ./.punctual
	@$(CARGO) build --release -p punctual-node --bin punctual
	@echo
	@echo 'Then, in another terminal, a first job:'
	@echo
	@echo '    $(RELEASE)/punctual enqueue demo.sleep --args '\''{"ms":500}'\'' --delay 3s --wait --redis "unix://$$PWD/.punctual/redis.sock"'
	@echo
	@server=$$(scripts/find-redis.sh 2>/dev/null) || { scripts/find-redis.sh; exit 1; }; \
	PATH="$$(dirname "$$server"):$$PATH" exec "$(RELEASE)/punctual" dev

build: ## The release binary
	$(CARGO) build --release -p punctual-node --bin punctual

test: ## Format, lints and every test, as CI runs them
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) build -p punctual-node --bin punctual
	@server=$$(scripts/find-redis.sh) || exit 1; export REDIS_SERVER="$$server"; set -e; \
	if $(CARGO) nextest --version >/dev/null 2>&1; then \
	  set -x; $(CARGO) nextest run --workspace --no-fail-fast; $(CARGO) test --workspace --doc; \
	else \
	  set -x; $(CARGO) test --workspace --no-fail-fast; \
	fi

chaos: ## 5,000 random interleavings of whole nodes under faults, beside the 500 of `make test`
	@server=$$(scripts/find-redis.sh) || exit 1; export REDIS_SERVER="$$server" PUNCTUAL_RUNS=1250; \
	$(CARGO) test --release -p punctual-tests --test explore -- --nocapture

soak: ## 50,000 of them
	@server=$$(scripts/find-redis.sh) || exit 1; export REDIS_SERVER="$$server" PUNCTUAL_RUNS=12500; \
	$(CARGO) test --release -p punctual-tests --test explore -- --nocapture

mutants: ## Plants bugs into the scripts, one at a time, and shows after how many interleavings each is found
	@server=$$(scripts/find-redis.sh) || exit 1; export REDIS_SERVER="$$server"; \
	$(CARGO) test --release -p punctual-tests --test explore planted -- --ignored --nocapture

lint: ## Format and lints only
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fmt: ## Formats the code
	$(CARGO) fmt --all

bench: ## Built-in load against a server of its own, in a namespace that it removes: rates and latencies
	@$(CARGO) build --release -p punctual-node --bin punctual
	@server=$$(scripts/find-redis.sh) || exit 1; \
	dir=$$(mktemp -d "$${TMPDIR:-/tmp}/punctual-bench.XXXXXX"); \
	"$$server" --bind 127.0.0.1 --port 0 --unixsocket "$$dir/redis.sock" --dir "$$dir" --save '' --appendonly yes >"$$dir/redis.log" & \
	redis=$$!; trap 'kill $$redis; wait $$redis; rm -rf "$$dir"' EXIT; \
	for _ in $$(seq 100); do [ -S "$$dir/redis.sock" ] && break; sleep 0.1; done; \
	PUNCTUAL__REDIS__URL="unix://$$dir/redis.sock" "$(RELEASE)/punctual" bench

manifests: ## Validates deploy/k8s against the schemas of Kubernetes
	@scripts/check-manifests.sh
