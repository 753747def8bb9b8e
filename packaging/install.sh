#!/bin/sh
# Installs what `make build` has built, or removes what this script has installed: make install [PREFIX=/usr/local] [DESTDIR=], make uninstall.
#
#   install.sh install|uninstall BUILT
#
# BUILT is the folder of the release build. From the environment: PREFIX, SYSCONFDIR (its settings), DESTDIR (before every path; a staging area for
# packages). All programs and libraries go to one folder, PREFIX/lib/radic, where they find each other; PREFIX/bin has links to the programs.
# What was made is listed in PREFIX/lib/radic/installed, and that list is what uninstall removes: files, and the folders that were not there before.
set -eu

prefix=${PREFIX:-/usr/local}
case $prefix in
/usr) sysconfdir=${SYSCONFDIR:-/etc} ;;
*) sysconfdir=${SYSCONFDIR:-$prefix/etc} ;;
esac
root=${DESTDIR:-}
lib=$prefix/lib/radic
list=$root$lib/installed
source=$(cd "$(dirname "$0")/.." && pwd)

fail() { echo "install: $*" >&2; exit 1; }

case $prefix$sysconfdir in
*[[:space:]]*) fail "PREFIX and SYSCONFDIR must not hold spaces: $prefix, $sysconfdir" ;;
esac
case $prefix in
/*) ;;
*) fail "PREFIX must be an absolute path, not $prefix" ;;
esac

# folder PATH: makes it with what is above it, and notes what was not there.
folder() {
    [ -n "$1" ] && [ "$1" != / ] || return 0
    [ ! -d "$root$1" ] || return 0
    folder "${1%/*}"
    mkdir -m 755 "$root$1"
    echo "folder $1" >>"$new"
}

# put MODE SOURCE PATH
put() {
    folder "${3%/*}"
    install -m "$1" "$2" "$root$3"
    echo "file $3" >>"$new"
}

# link TARGET PATH
link() {
    folder "${2%/*}"
    ln -sfn "$1" "$root$2"
    echo "file $2" >>"$new"
}

# fill SOURCE: a template with the paths of this installation.
fill() { sed -e "s|@BINDIR@|$prefix/bin|g" -e "s|@SYSCONFDIR@|$sysconfdir|g" -e "s|@PREFIX@|$prefix|g" "$1"; }

programs="radic radicd"
libraries="libradic.so libradic_pmi.so libradic_pmix.so libradic_ckpt_preload.so"

do_install() {
    built=$1
    for name in $programs $libraries; do
        [ -f "$built/$name" ] || fail "$built/$name is missing: run \`make build\` first"
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    new=$work/list
    : >"$new"
    [ -z "$root" ] || mkdir -p "$root"
    # The folders of an installation before this one are ours, too.
    [ ! -f "$list" ] || grep '^folder ' "$list" >>"$new" || true
    "$built/radic" man "$work/man" 2>/dev/null

    for name in $programs; do
        put 755 "$built/$name" "$lib/$name"
        link "../lib/radic/$name" "$prefix/bin/$name"
    done
    for name in $libraries; do put 644 "$built/$name" "$lib/$name"; done
    for page in "$work/man"/*; do
        put 644 "$page" "$prefix/share/man/man${page##*.}/$(basename "$page")"
    done
    for name in $programs; do
        "$built/radic" completions bash --of "$name" >"$work/completions"
        put 644 "$work/completions" "$prefix/share/bash-completion/completions/$name"
        "$built/radic" completions zsh --of "$name" >"$work/completions"
        put 644 "$work/completions" "$prefix/share/zsh/${ZSH_FOLDER:-site-functions}/_$name"
        "$built/radic" completions fish --of "$name" >"$work/completions"
        put 644 "$work/completions" "$prefix/share/fish/vendor_completions.d/$name.fish"
    done
    fill "$source/packaging/systemd/radicd@.service.in" >"$work/unit"
    put 644 "$work/unit" "$prefix/lib/systemd/system/radicd@.service"
    put 644 "$source/packaging/systemd/radic.sysusers" "$prefix/lib/sysusers.d/radic.conf"
    put 644 "$source/packaging/systemd/radic.tmpfiles" "$prefix/lib/tmpfiles.d/radic.conf"
    fill "$source/packaging/modules/radic.in" >"$work/module"
    put 644 "$work/module" "$prefix/share/radic/modulefile"
    put 644 "$source/packaging/radicd.toml" "$prefix/share/doc/radic/radicd.toml"
    put 644 "$source/packaging/slurm/chained.sh" "$prefix/share/doc/radic/chained.sh"
    for name in $(cd "$source/packaging/kubernetes" && find base overlays -type f); do
        put 644 "$source/packaging/kubernetes/$name" "$prefix/share/doc/radic/kubernetes/$name"
    done
    for name in README.md ARCHITECTURE.md CHANGELOG.md LICENSE LICENSE-MIT LICENSE-APACHE; do
        put 644 "$source/$name" "$prefix/share/doc/radic/$name"
    done
    for page in "$source"/docs/*.md; do
        put 644 "$page" "$prefix/share/doc/radic/docs/$(basename "$page")"
    done
    put 644 "$source/ckpt/README.md" "$prefix/share/doc/radic/ckpt/README.md"
    # The site's settings are its own once they are there.
    if [ -e "$root$sysconfdir/radic/radicd.toml" ]; then
        { [ -f "$list" ] && grep -qxF "config $sysconfdir/radic/radicd.toml" "$list"; } || sysconfdir=
    else
        folder "$sysconfdir/radic"
        install -m 644 "$source/packaging/radicd.toml" "$root$sysconfdir/radic/radicd.toml"
    fi
    [ -z "$sysconfdir" ] || echo "config $sysconfdir/radic/radicd.toml" >>"$new"

    # What an installation before this one had and this one has not.
    [ ! -f "$list" ] || sed -n 's/^file //p' "$list" | while read -r path; do
        grep -qxF "file $path" "$new" || rm -f "$root$path"
    done
    sort -u "$new" >"$work/sorted"
    install -m 644 "$work/sorted" "$list"
    echo "install: RADIC is in $root$prefix; \`make uninstall\` with the same PREFIX removes it"
}

do_uninstall() {
    [ -f "$list" ] || fail "$list is missing: nothing was installed by \`make install\` with this PREFIX ($prefix) and DESTDIR (${root:-none})"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp "$list" "$work/list"
    sed -n 's/^config //p' "$work/list" | while read -r path; do
        if cmp -s "$root$path" "$root$prefix/share/doc/radic/radicd.toml"; then
            rm -f "$root$path"
        elif [ -e "$root$path" ]; then
            echo "install: $root$path was changed: it stays"
        fi
    done
    sed -n 's/^file //p' "$work/list" | while read -r path; do rm -f "$root$path"; done
    rm -f "$list"
    # The deepest first; one that holds something of others stays.
    sed -n 's/^folder //p' "$work/list" | sort -r | while read -r path; do rmdir "$root$path" 2>/dev/null || true; done
    echo "install: RADIC is removed from $root$prefix"
}

case ${1:-} in
install) do_install "${2:?the folder of the release build}" ;;
uninstall) do_uninstall ;;
*) fail "usage: install.sh install|uninstall BUILT" ;;
esac
