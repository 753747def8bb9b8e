# make demo    everything on a fresh Debian 12: installs, builds, kills a node under a real MPI program, and shows how the job goes on
# make test    what CI runs: format, lints, documentation, unit and integration tests, the Debian package in a clean root, 5,000 seeds of simulated clusters, some seconds of fuzzing; of the longest
#              scenarios a quarter of the tests, drawn (RADIC_DRAW=0: all)
# make check   for the developer's loop: format, lints, unit tests, 500 simulated clusters
# make fuzz    fuzzes every parser, each for so long, as many at once as there are processors: make fuzz SECONDS=600 [TARGETS="image pmi"]
# make sim     simulates whole clusters, one for each seed: make sim SEEDS=1..10000; very many: make sim SEEDS=1..1000000 PROFILE=sim
# make lives   kills ranks of real jobs in all their lives, and restores each image: make lives RESTORES=10000 [SEED=N]
# make chaos   real clusters with random programs and faults: make chaos MINUTES=10 [SEED=N]; a night of it: MINUTES=480
# make foreign runs real software (memcached, nginx, PostgreSQL, LAMMPS, ...) under protection, undisturbed and through deaths: make foreign RUNS=3 [ONLY=grpc]
# make slurm   a node, the script's node, srun or a daemon dies in a real Slurm of five nodes, with each MPI library, each so many times: make slurm RUNS=20 [ONLY=node:mpich|node|mpich] [SEED=N]
# make gridengine  installs Debian's Grid Engine, and runs a job with deaths in one of five hosts on this machine (with root)
# make pictures  draws docs/pictures/*.svg from their descriptions
# make screenshots  takes pictures of `radic top` and the page, of a job of 8 ranks through two deaths and a suspension (with chromium, playwright, pyte and pillow)
# make page-at-scale  has Chromium show the page of 1,000 nodes and 4,000 ranks, all of which change ten times a second (with chromium and playwright)
# make install  installs what `make build` has built: make install [PREFIX=/usr/local] [DESTDIR=]; make uninstall removes exactly that
# make deb      a Debian package in target/package; make package-test tries all that is below packaging/ (with root, apt and mmdebstrap)
.PHONY: demo test units packages beside check deps build compile format lint documentation unit integration long foreign slurm gridengine fuzzer fuzz sim chaos lives pictures screenshots page-at-scale clean man completions install uninstall stage deb package-test

CARGO ?= cargo
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

demo: deps build
	./scripts/demo.sh

# What comes over the network comes while the compiler works, for which `deps.sh compilers` has what it needs. The unit tests and what tries the package wait for half of their
# time, so they run at once. The documentation and the fuzzer's build have what all of these leave of the processors. Then one after the other: ranks of MPI programs yield while
# they poll, so whatever computes beside a scenario, at the lowest priority, makes it several times as long.
# Clippy compiles the tests, so that lints cost no second compilation: its driver is a compiler. What the tests drive, the release build, is rustc's.
test: export RADIC_DRAW ?= 1
test: export LINTS := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings
test: format
	./scripts/deps.sh compilers
	$(MAKE) --jobs=3 units packages beside
	$(MAKE) --jobs=1 sim fuzz integration TRIED=packages

units: deps compile
	$(MAKE) unit

packages: deps compile
	./scripts/scenarios.sh $(TARGET)/scenarios packages

beside: build
	nice -n 19 $(MAKE) documentation
	nice -n 19 $(MAKE) fuzzer

check: format
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	$(CARGO) test --quiet --profile tests --workspace --exclude radic-fuzz --lib --bins
	$(TARGET)/tests/radic-sim --seeds 1..500

deps:
	./scripts/deps.sh

build:
	$(CARGO) build --release --workspace

compile: build
	$(LINTS) $(CARGO) test --profile tests --workspace --all-targets --no-run

format:
	$(CARGO) fmt --all --check

lint: format documentation
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

documentation:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --document-private-items

# Half of what the restores take is waiting: twice as many at once as there are processors. The library for fuzzing has modules of other crates, whose tests run there.
# Always of the whole workspace, but for that library: of a part of it Cargo would choose other features of what is below, and compile all of that once more.
SCENARIOS := $(basename $(notdir $(wildcard tests/tests/*.rs)))
TESTS := $(filter-out $(SCENARIOS),$(basename $(notdir $(wildcard */tests/*.rs)))) $(notdir $(patsubst %/main.rs,%,$(wildcard */tests/*/main.rs)))
FUZZED := $(basename $(notdir $(wildcard fuzz/tests/*.rs)))
unit:
	$(LINTS) $(CARGO) test --profile tests --workspace --exclude radic-fuzz --no-fail-fast --lib --bins $(addprefix --test ,$(filter-out $(FUZZED) restore,$(TESTS)))
	$(LINTS) $(CARGO) test --profile tests --workspace --no-fail-fast $(addprefix --test ,$(FUZZED) restore) -- --test-threads $$((2 * $$(nproc)))
	$(LINTS) $(CARGO) test --profile tests --workspace --doc

integration: build
	./scripts/scenarios.sh $(TARGET)/scenarios $(filter-out $(TRIED),$(SCENARIOS))

# libFuzzer on stable Rust: what cargo-fuzz asks for with -Z is asked of LLVM. Everything is built anew, with counters, in a place of its
# own. Findings are in target/fuzz, and what was learnt, too: the next run begins with it. fuzz/README.md tells more.
SECONDS ?= 1
TARGETS ?= .*
FUZZ := $(TARGET)/fuzz
COVERAGE := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1
fuzzer:
	RUSTFLAGS="$(COVERAGE)" $(CARGO) build --quiet --release --manifest-path fuzz/libfuzzer/Cargo.toml \
		--target x86_64-unknown-linux-gnu --target-dir $(FUZZ)

fuzz: deps fuzzer
	RADIC_FUZZ_CORPUS=$(FUZZ)/first $(LINTS) $(CARGO) test --quiet --profile tests --workspace --test checks the_first_inputs_are_accepted
	grep -E '^($(subst $() $(),|,$(TARGETS))) ' $(FUZZ)/first/list | \
		xargs -P $$(nproc) -L 1 ./fuzz/run.sh $(FUZZ) $(SECONDS)

# Whole clusters of the real state machines with virtual time; a seed that fails is printed with the command that shows it once more.
# PROFILE=sim compiles it alone, for minutes, and a seed takes two fifths less time.
# From seed 10000000 on jobs are suspended and resumed, too; from 20000000 on most run as they do by default; from 30000000 on several nodes die at once.
SEEDS ?= 1..2000 10000000..10000499 20000000..20001999 30000000..30000499
PROFILE ?= release
sim: $(if $(filter release,$(PROFILE)),build)
	$(if $(filter-out release,$(PROFILE)),$(CARGO) build --profile $(PROFILE) -p radic-sim)
	for seeds in $(SEEDS); do $(TARGET)/$(PROFILE)/radic-sim --seeds $$seeds || exit 1; done

MINUTES ?= 10
chaos: deps build
	RADIC_CHAOS_MINUTES=$(MINUTES) $(if $(SEED),RADIC_SEED=$(SEED)) $(CARGO) test --profile tests --workspace --test chaos -- --nocapture

RESTORES ?= 10000
lives: deps build
	RADIC_RESTORES=$(RESTORES) $(if $(SEED),RADIC_SEED=$(SEED)) $(CARGO) test --profile tests --workspace --test lives -- --nocapture

# Scenarios with the long variants: every combination of the checkpoint tests (15 minutes), no false death in five minutes, and so on.
long: build
	RADIC_LONG=1 $(CARGO) test --profile tests -p radic-ckpt --test restore -- --nocapture
	RADIC_LONG=1 $(CARGO) test --profile tests -p radic-tests -- --test-threads=1 --nocapture

# Real software under protection, from Debian and PyPI: undisturbed and through deaths, each so many times: make foreign RUNS=3 [ONLY=memcached]
RUNS ?= 3
foreign: export RADIC_DEPS := foreign
foreign: deps build
	RADIC_LONG=1 RADIC_RUNS=$(RUNS) $(CARGO) test --profile tests --workspace --test foreign -- --test-threads=1 --nocapture $(ONLY)

slurm: export RADIC_DEPS := all
slurm: deps build
	RADIC_RUNS=$(RUNS) RADIC_ONLY=$(ONLY) $(if $(SEED),RADIC_SEED=$(SEED)) $(CARGO) test --profile tests --workspace --test slurm_deaths -- --nocapture

gridengine: export RADIC_DEPS := gridengine
gridengine: deps build
	$(CARGO) test --profile tests --workspace --test gridengine -- --test-threads=1 --nocapture

pictures:
	python3 scripts/pictures.py docs/pictures/*.txt

# What takes the pictures is no part of `make deps`: apt-get install chromium fonts-dejavu-core; pip install playwright pyte pillow.
screenshots: build
	PATH=$(TARGET)/release:$$PATH python3 scripts/screenshots.py '.deps/programs/mpich/jacobi --size 400 --iterations 100000 --alone 0' docs/pictures

page-at-scale:
	$(CARGO) build --release --workspace --examples
	python3 scripts/page_at_scale.py $(TARGET)/release/examples/feed

man: build
	$(TARGET)/release/radic man $(TARGET)/man

completions: build
	mkdir -p $(TARGET)/completions
	for shell in bash zsh fish; do for program in radic radicd; do \
		$(TARGET)/release/radic completions $$shell --of $$program >$(TARGET)/completions/$$program.$$shell || exit 1; done; done

# Nothing is built here: `make build` as yourself, then `sudo make install`.
PREFIX ?= /usr/local
export PREFIX SYSCONFDIR DESTDIR
install:
	./packaging/install.sh install $(TARGET)/release

uninstall:
	./packaging/install.sh uninstall

# The same files as for `make install PREFIX=/usr`, with the licences of all that is compiled in. packaging/README.md tells what is made of it.
STAGE := target/package/root
stage: build
	rm -rf $(STAGE)
	PREFIX=/usr SYSCONFDIR=/etc DESTDIR=$(STAGE) ZSH_FOLDER=vendor-completions ./packaging/install.sh install $(TARGET)/release
	./packaging/third-party.py >$(STAGE)/usr/share/doc/radic/THIRD-PARTY

# As Debian wants it: without what debuggers need (that stays in target/package/debug), and its names of changelogs. A cargo-deb that is missing is compiled into .deps.
DEBUG := target/package/debug
deb: export PATH := $(CURDIR)/.deps/cargo-deb/bin:$(PATH)
deb: stage
	mkdir -p $(DEBUG)
	for file in $(STAGE)/usr/lib/radic/radic* $(STAGE)/usr/lib/radic/*.so; do name=$$(basename $$file); \
		objcopy --only-keep-debug --compress-debug-sections $$file $(DEBUG)/$$name.debug && strip --strip-unneeded $$file && \
		objcopy --add-gnu-debuglink=$(DEBUG)/$$name.debug $$file || exit 1; done
	gzip -9n <$(STAGE)/usr/share/doc/radic/CHANGELOG.md >$(STAGE)/usr/share/doc/radic/changelog.gz
	rm $(STAGE)/usr/share/doc/radic/CHANGELOG.md
	$(CARGO) deb --version >/dev/null 2>&1 || ./scripts/deps.sh cargo-deb
	$(CARGO) deb --no-build -p radic-tools --output target/package/

package-test: deb
	./packaging/test.sh

clean:
	$(CARGO) clean
	rm -rf .deps
