#!/bin/bash
# Tries what is below packaging/ on what `make deb` has made: `make package-test`. It wants root, minutes, and
#     apt-get install lintian mmdebstrap man-db systemd rpm rpmlint environment-modules shellcheck zsh fish prometheus curl
# A part whose tool is missing is named and left out, and so is the clean root without root; with RADIC_DEPS=all that is a failure. packaging/test.sh PART... tries only
# these: tests/tests/packages.rs, a part of `make test`, those that need neither rpm nor Prometheus.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
package=$here/target/package
built=$(realpath "${CARGO_TARGET_DIR:-target}")/release
work=$(mktemp -d /tmp/radic-package-test.XXXXXX)
failed=0 tried=0 skipped=0

cleanup() {
    local dir
    for dir in "$work/run" "$work/cluster-of-metrics"; do
        [ ! -d "$dir" ] || "$built/radic" cluster stop --dir "$dir" >/dev/null 2>&1 || true
    done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

say() { echo "package-test: $*"; }
# need TOOL: whether it is there; else the part is left out, by name.
need() {
    command -v "$1" >/dev/null && return 0
    say "LEFT OUT: ${FUNCNAME[1]} needs $1"
    return 1
}
# What computes and is not waited for by daemons: scenarios may run beside it.
gently() { nice -n 19 "$@"; }
expect() { # expect WHAT ACTUAL EXPECTED
    [ "$2" = "$3" ] || { say "$1 is '$2', not '$3'"; return 1; }
}

# Installed into a staging area, a job runs from there, a node dies under another, and what is uninstalled leaves nothing.
part_install() {
    local stage=$work/stage with=(DESTDIR="$work/stage" PREFIX=/opt/radic)
    mkdir "$stage"
    make --no-print-directory -s install "${with[@]}"
    local bin=$stage/opt/radic/bin dir=$work/run
    "$bin/radic" cluster start --nodes 3 --dir "$dir" >/dev/null
    expect "a job's output" "$("$bin/radic" --cluster "$dir" run -n 3 -- cat /proc/self/comm | sort -u)" cat
    "$bin/radic" --cluster "$dir" run -n 3 --ckpt-interval 0.2 -- sleep 4 &
    local job=$!
    sleep 1.5
    "$bin/radic" --cluster "$dir" inject kill-node n2
    wait "$job"
    "$bin/radic" --cluster "$dir" events --json | grep '"event":"live"' >/dev/null || { say "no rank was brought back"; return 1; }
    expect "the daemons' folder" "$(readlink -f "$bin/radicd")" "$stage/opt/radic/lib/radic/radicd"
    "$bin/radic" cluster stop --dir "$dir" >/dev/null
    # Once more over itself; a changed setting stays, an unchanged one goes.
    make --no-print-directory -s install "${with[@]}"
    echo "# ours" >>"$stage/opt/radic/etc/radic/radicd.toml"
    make --no-print-directory -s install "${with[@]}"
    make --no-print-directory -s uninstall "${with[@]}" | grep 'was changed: it stays' >/dev/null
    expect "what is left" "$(cd "$stage" && find . -type f)" ./opt/radic/etc/radic/radicd.toml
    rm -rf "${stage:?}/opt"
    make --no-print-directory -s install "${with[@]}"
    : >"$stage/opt/radic/share/other"
    make --no-print-directory -s uninstall "${with[@]}"
    expect "what is left of others" "$(cd "$stage" && find . ! -type d)" ./opt/radic/share/other
    rm -rf "${stage:?}/opt"
    make --no-print-directory -s install "${with[@]}"
    make --no-print-directory -s uninstall "${with[@]}"
    expect "what is left" "$(ls -A "$stage")" ""
    if make --no-print-directory -s uninstall "${with[@]}" 2>/dev/null; then say "nothing was uninstalled, without an error"; return 1; fi
}

part_man() {
    need man || return 77
    local page warnings pages=0
    "$built/radic" man "$work/man" 2>/dev/null
    for page in "$work/man"/*; do
        warnings=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=100 man --warnings=all -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
        expect "what man says to $(basename "$page")" "$warnings" ""
        expect "the name in $(basename "$page")" "$(lexgrog "$page" | grep -c "$(basename "${page%.*}") - ")" 1
        pages=$((pages + 1))
    done
    say "$pages manual pages"
}

part_completions() {
    local shell program
    for shell in bash zsh fish; do
        command -v "$shell" >/dev/null || { say "LEFT OUT: completions of $shell"; continue; }
        for program in radic radicd; do
            "$built/radic" completions "$shell" --of "$program" >"$work/completions"
            "$shell" -n "$work/completions"
        done
    done
    # shellcheck disable=SC1090 # It was just made.
    expect "what completes radic clu" "$("$built/radic" completions bash >"$work/completions" && bash -c '
        . "$1"; COMP_WORDS=(radic clu) COMP_CWORD=1; _radic radic clu radic; echo "${COMPREPLY[*]}"' - "$work/completions")" cluster
}

part_unit() {
    need systemd-analyze || return 77
    local unit=$work/radicd@.service
    sed -e "s|@BINDIR@|$package/root/usr/bin|" -e 's|@SYSCONFDIR@|/etc|' packaging/systemd/radicd@.service.in >"$unit"
    # Of a unit in another folder the manual pages are not found.
    expect "what systemd says" "$(systemd-analyze verify --man=no "$unit" 2>&1)" ""
    systemd-analyze security --offline=yes --threshold=50 "$unit" >"$work/security" || { cat "$work/security"; return 1; }
    tail -n 1 "$work/security"
}

# What sysusers.d and tmpfiles.d make, in a root of their own.
part_account() {
    need systemd-sysusers || return 77
    need systemd-tmpfiles || return 77
    [ "$(id -u)" = 0 ] || { say "LEFT OUT: an account needs root"; return 77; }
    local root=$work/account name
    for name in sysusers tmpfiles; do
        mkdir -p "$root/usr/lib/$name.d"
        cp "packaging/systemd/radic.$name" "$root/usr/lib/$name.d/radic.conf"
    done
    mkdir "$root/etc"
    for _ in 1 2; do
        systemd-sysusers --root="$root" radic.conf 2>/dev/null
        expect "what tmpfiles says" "$(systemd-tmpfiles --root="$root" --create radic.conf 2>&1)" ""
    done
    expect "the accounts" "$(cut -d: -f1,6,7 "$root/etc/passwd")" radic:/var/lib/radic/radic:/usr/sbin/nologin
    expect "the owner of its home" "$(stat -c '%u %a' "$root/var/lib/radic/radic")" "$(cut -d: -f3 "$root/etc/passwd") 700"
}

part_settings() {
    "$built/radic" key "$work/key" 2>/dev/null
    "$built/radicd" --config packaging/radicd.toml --listen 127.0.0.1:0 --name n --key "$work/key" --dir "$work/d" --check-config >/dev/null
}

part_lintian() {
    need lintian || return 77
    gently lintian --allow-root --fail-on error --tag-display-limit 0 "$package"/radic_*.deb
}

# clean_root ROOT: a Debian 12 with nothing on it but apt, and with apt's lists. The first one is fetched, the others are copies of it.
clean_root() {
    local first=$work/first
    [ -d "$first" ] || {
        gently mmdebstrap --quiet --variant=apt --dpkgopt=force-unsafe-io --aptopt='Acquire::Retries "3"' --skip=cleanup/apt/lists bookworm "$first.part" >"$work/mmdebstrap" 2>&1 ||
            { tail "$work/mmdebstrap"; return 1; }
        mv "$first.part" "$first"
    }
    cp --archive --reflink=auto "$first" "$1"
    cp "$package"/radic_*.deb "$1/root/"
    # apt there fetches with the network of this machine.
    cp --dereference /etc/resolv.conf /etc/hosts "$1/etc/"
}

# On a clean Debian 12: installed by apt, run as an ordinary user, removed, purged; nothing is left. Then the unit, under a systemd of its own.
part_debian() {
    need mmdebstrap || return 77
    [ "$(id -u)" = 0 ] || { say "LEFT OUT: a clean root needs root"; return 77; }
    local root=$work/root
    clean_root "$root"
    cp packaging/in-root.sh packaging/in-boot.sh "$root/root/"
    echo 'nice -n 19 apt-get install -y -q --no-install-recommends man-db procps systemd dbus' >"$root/root/prepare.sh"
    within "$root" prepare.sh >"$work/prepare" 2>&1 || { tail "$work/prepare"; return 1; }
    within "$root" in-root.sh --net
    boot "$root"
}

# A newcomer's minute, on a Debian 12 with nothing on it but apt: what the package needs for `man radic`, Tab and `radic top` comes with it.
part_newcomer() {
    need mmdebstrap || return 77
    [ "$(id -u)" = 0 ] || { say "LEFT OUT: a clean root needs root"; return 77; }
    local root=$work/newcomer
    clean_root "$root"
    cp packaging/newcomer.sh "$root/root/"
    within "$root" newcomer.sh
}

# within ROOT SCRIPT [OPTION]: runs /root/SCRIPT there, in namespaces of its own (of unshare's OPTION, too): whatever happens, nothing that was started stays behind.
within() {
    # shellcheck disable=SC2016 # $1 and $2 are the inner shell's.
    unshare --mount --pid --fork --kill-child ${3:+"$3"} -- bash -euc '
        ip link set lo up
        mount --bind "$1" "$1" && cd "$1"
        mount -t proc proc proc && mount --rbind /dev dev && mount -t tmpfs tmpfs dev/shm -o mode=1777
        chroot . bash "/root/$2"' - "$1" "$2"
}

# boot ROOT: systemd as the first process of namespaces, and of a control group, of its own; it runs /root/in-boot.sh and powers off.
boot() {
    local root=$1 group
    group=$(findmnt -n -o TARGET -t cgroup2 | head -n 1)/radic-package-test.$$
    mkdir "$group" 2>/dev/null || { say "LEFT OUT: the unit under systemd: no control group (version 2) can be made"; return 77; }
    printf '[Unit]\nAfter=basic.target\n[Service]\nType=oneshot\nExecStart=/bin/bash /root/in-boot.sh\n' >"$root/etc/systemd/system/radic-test.service"
    printf '[Unit]\nRequires=basic.target\nWants=radic-test.service\nAfter=basic.target\n' >"$root/etc/systemd/system/radic-test.target"
    # Not by chroot, within which nobody may make a user namespace: then no rank would come back under its old ids.
    # shellcheck disable=SC2016 # $1 is the inner shell's.
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        exec timeout -k 5 180 unshare --mount --pid --fork --kill-child --cgroup --net --uts --ipc -- bash -euc '
            ip link set lo up
            mount --bind "$1" "$1"; cd "$1"
            mount -t proc proc proc; mount -t sysfs -o ro sysfs sys; mount -t cgroup2 cgroup2 sys/fs/cgroup
            mount -t tmpfs tmpfs dev -o mode=755
            for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
            mkdir dev/shm dev/pts
            mount -t tmpfs tmpfs dev/shm -o mode=1777
            mount -t devpts devpts dev/pts -o newinstance,ptmxmode=666
            ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
            mount -t tmpfs tmpfs run -o mode=755; mount -t tmpfs tmpfs tmp -o mode=1777
            mkdir -p mnt; pivot_root . mnt; umount -l /mnt
            exec env -i container=radic PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=radic-test.target' - "$root"
    ) >"$work/boot" 2>&1 || true
    find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    tail -n 3 "$root/root/said" 2>/dev/null | cut -c 1-200
    expect "what in-boot.sh ended with" "$(cat "$root/root/code" 2>/dev/null)" 0 || { cat "$work/boot" "$root/root/said"; return 1; }
}

part_rpm() {
    need rpmspec || return 77
    rpmspec --parse packaging/rpm/radic.spec >/dev/null
    ! command -v rpmlint >/dev/null || rpmlint -r packaging/rpm/radic.rpmlintrc packaging/rpm/radic.spec
    # Its own steps, of a tarball of this commit, but for what it would have to compile once more.
    need rpmbuild || return 77
    local top=$work/rpm
    mkdir -p "$top/SOURCES"
    git archive --prefix=radic-0.1.0/ -o "$top/SOURCES/radic-0.1.0.tar.gz" HEAD
    rpmbuild --nodeps -bb --define "_topdir $top" --define "_prebuilt $built" packaging/rpm/radic.spec >"$work/rpmbuild" 2>&1 || { tail -n 30 "$work/rpmbuild"; return 1; }
    rpm -qlp "$top"/RPMS/*/radic-0*.rpm >"$work/rpm-list" 2>/dev/null
    grep -q /usr/bin/radic "$work/rpm-list"
    grep -q radicd.8 "$work/rpm-list"
}

part_module() {
    local tclsh=/usr/lib/x86_64-linux-gnu/modulecmd.tcl
    [ -e "$tclsh" ] || tclsh=$(command -v modulecmd || true)
    [ -n "$tclsh" ] || { say "LEFT OUT: a module file needs environment-modules"; return 77; }
    mkdir -p "$work/modules/radic"
    sed 's|@PREFIX@|/opt/radic|g' packaging/modules/radic.in >"$work/modules/radic/0.1.0"
    MODULEPATH=$work/modules "$tclsh" bash load radic/0.1.0 >"$work/module" 2>&1
    grep -q '/opt/radic/bin' "$work/module" || { cat "$work/module"; return 1; }
}

# What the version of a tarball names: its commit, and the day of SOURCE_DATE_EPOCH. Without a commit: none, also within a work tree of others.
part_tarball() {
    local top=$work/tarball script=$work/build
    mkdir "$top"
    git archive HEAD | tar -x -C "$top"
    rustc --edition 2024 -o "$script" "$top/version/build.rs"
    says() { (cd "$top/version" && env "$@" "$script" | sed -n 's/^cargo::rustc-env=RADIC_BUILD_[A-Z]*=//p' | tr '\n' ' '); }
    local commit day
    commit=$(git rev-parse --short=12 HEAD)
    day=$(TZ=UTC git log -1 --date=short-local --format=%cd)
    expect "a tarball's version" "$(says A=)" "$commit $day "
    expect "a tarball's version on a given day" "$(says SOURCE_DATE_EPOCH=1000000000)" "$commit 2001-09-09 "
    expect "the version that a packager gives" "$(says RADIC_COMMIT=0123456789abcdef)" "0123456789ab unknown "
    # shellcheck disable=SC2016 # As it is without git archive.
    echo '$Format:%H %ct$' >"$top/version/commit"
    expect "the version without a commit" "$(says A=)" "unknown unknown "
    git init -q "$work"
    git -C "$work" -c user.name=n -c user.email=e@example.org commit -q --allow-empty -m other
    expect "the version within another work tree" "$(says A=)" "unknown unknown "
    git -C "$top" init -q
    git -C "$top" -c user.name=n -c user.email=e@example.org commit -q --allow-empty -m first
    expect "the version of a work tree" "$(says A= | cut -c 1-12)" "$(git -C "$top" rev-parse --short=12 HEAD)"
}

# The manifests, by the schemas of Kubernetes. `make test` does so, too, and starts what the pods run.
part_kubernetes() {
    local python=.deps/kubernetes/bin/python
    [ -x "$python" ] || { say "LEFT OUT: kubernetes needs \`make deps\`"; return 77; }
    "$python" packaging/kubernetes/check.py
    need shellcheck || return 0
    shellcheck packaging/kubernetes/base/*.sh
}

# What radicd tells, by Prometheus's linter; the rules, by its tests; and then a Prometheus scrapes all nodes with the settings of contrib/.
part_metrics() {
    need promtool || return 77
    need prometheus || return 77
    local dir=$work/cluster-of-metrics settings=$work/prometheus node url targets=()
    "$built/radic" cluster start --nodes 2 --http --dir "$dir" >/dev/null
    "$built/radic" --cluster "$dir" run -n 2 -- sleep 60 &
    local job=$!
    "$built/radic" --cluster "$dir" web --token >"$work/token"
    while read -r node url; do
        url=${url##*@}
        targets+=("\"${url%/}\"")
        curl --silent --show-error --fail --header "Authorization: Bearer $(cat "$work/token")" "http://${url}metrics" >"$work/metrics"
        awk -f packaging/openmetrics.awk "$work/metrics" | promtool check metrics || { say "of $node"; return 1; }
    done < <("$built/radic" --cluster "$dir" web)
    expect "how many nodes serve metrics" "${#targets[@]}" 2
    mkdir "$settings"
    cp contrib/prometheus/alerts.yml contrib/prometheus/alerts_test.yml "$settings"
    sed -e "s|targets: .*|targets: [$(IFS=,; echo "${targets[*]}")]|" -e "s|/etc/prometheus/radic.token|$work/token|" -e 's|scrape_interval: 5s|scrape_interval: 1s|' \
        contrib/prometheus/scrape.yml >"$settings/prometheus.yml"
    promtool check config "$settings/prometheus.yml" >/dev/null
    (cd "$settings" && promtool test rules alerts_test.yml >/dev/null)
    prometheus --config.file="$settings/prometheus.yml" --storage.tsdb.path="$settings/data" --web.listen-address=127.0.0.1:0 >"$settings/log" 2>&1 &
    local prometheus=$! is_scraped=
    local address
    for _ in $(seq 150); do
        address=$(sed -n 's/.*msg="Listening on" address=\([^ ]*\).*/\1/p' "$settings/log")
        [ -z "$address" ] || curl --silent "http://$address/api/v1/query?query=count(radic_rank_outbox_bytes)" | grep -F ',"2"]' >/dev/null && is_scraped=1 && break
        sleep 0.2
    done
    kill "$prometheus" "$job"
    wait "$prometheus" "$job" || true
    "$built/radic" cluster stop --dir "$dir" >/dev/null
    [ -n "$is_scraped" ] || { say "prometheus has not scraped both ranks within 30 s"; tail "$settings/log"; return 1; }
}

all="install man completions unit account settings lintian debian newcomer metrics rpm module tarball kubernetes"
# shellcheck disable=SC2086 # Words, on purpose.
[ $# -gt 0 ] || set -- $all
for part; do
    say "$part"
    # A part ends at its first error; it would not if it stood within a condition.
    set +e
    (set -e; "part_$part")
    code=$?
    set -e
    case $code in
    0) tried=$((tried + 1)) ;;
    77) if [ "${RADIC_DEPS:-}" = all ]; then failed=$((failed + 1)); say "FAILED: $part was left out"; else skipped=$((skipped + 1)); fi ;;
    *) failed=$((failed + 1)); say "FAILED: $part" ;;
    esac
done
echo "package-test: $tried passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
