# make demo    everything on a fresh Debian 12: installs, builds, starts a local cluster, runs a real MPI program under it
# make test    what CI runs: format, lints, documentation, unit and integration tests
.PHONY: demo test deps build lint unit integration long clean

CARGO ?= cargo

demo: deps build
	./scripts/demo.sh

test: deps lint build unit integration

deps:
	./scripts/deps.sh

build:
	$(CARGO) build --release --workspace

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items

unit:
	$(CARGO) test --release --workspace --exclude radic-tests

# One scenario at a time: each measures times on a machine that may have two cores.
integration: build
	$(CARGO) test --release -p radic-tests -- --test-threads=1 --nocapture

# The same with the long variants (no false death in five minutes, and so on).
long: build
	RADIC_LONG=1 $(CARGO) test --release -p radic-tests -- --test-threads=1 --nocapture

clean:
	$(CARGO) clean
	rm -rf .deps
