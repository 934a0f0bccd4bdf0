#!/usr/bin/env bash
# Runs a command in a clone of the committed working copy, on a minimal Debian on which nothing was ever installed.
#
#   tools/fresh.sh [SUITE] COMMAND     for example: tools/fresh.sh trixie make demo
#
# SUITE is a release of Debian (default: bookworm). The system is made with debootstrap from this machine's own package
# sources, once for each release (kept in FRESH_CACHE), and copied for each run into a folder that is removed afterwards;
# FRESH_KEEP=1 keeps that folder. The exit status is the command's, or 77 where no such system can be made: that needs
# root, the rights to mount and to change the root, and a Debian with package sources.
set -euo pipefail

CANNOT=77
cannot() {
    echo "fresh: no minimal Debian can be made here: $*" >&2
    exit $CANNOT
}
failed_to_make() {
    tail -n 3 "$log" >&2 || true
    rm -rf --one-file-system "$making"
    cannot "debootstrap failed; its log is $log"
}

case "${1:-}" in
    bookworm | trixie) suite=$1 && shift ;;
    *) suite=bookworm ;;
esac
[ $# -gt 0 ] || { sed -n 's/^#   /usage: /p' "$0" >&2; exit 2; }

top=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
cache=${FRESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fbtasks-fresh}
system=$cache/$suite
log=$cache/$suite.log

[ "$(id -u)" = 0 ] || cannot "this user is not root"
unshare --mount true 2>/dev/null || cannot "this machine does not allow mounts"
own=$(. /etc/os-release && echo "${ID:-}/${VERSION_CODENAME:-}")
[ "${own%/*}" = debian ] || cannot "this system is ${own%/*}, not debian"
own=${own#*/}
shopt -s nullglob
sources=(/etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list)
[ ! -f /etc/apt/sources.list ] || sources+=(/etc/apt/sources.list)
mirror=$(awk '
    /^URIs:/ {print $2; exit}
    /^deb /  {for (i = 2; i <= NF; i++) if ($i ~ /^[a-z+]+:\/\//) {print $i; exit}}' "${sources[@]}" 2>/dev/null) || true
[ -n "$mirror" ] || cannot "no package source is configured"

if [ ! -x "$system/usr/bin/make" ]; then
    command -v debootstrap >/dev/null || {
        apt-get update -qq >/dev/null && apt-get install -y -qq debootstrap >/dev/null 2>&1
    } || cannot "debootstrap cannot be installed"
    mkdir -p "$cache"
    making=$(mktemp -d "$cache/making.XXXX")
    echo "fresh: making a minimal $suite (once)" >&2
    debootstrap --variant=minbase --include=python3,make,git,ca-certificates "$suite" "$making" "$mirror" >"$log" 2>&1 ||
        failed_to_make
    rm -rf --one-file-system "$system"
    chmod 755 "$making"
    mv "$making" "$system"
fi

box=$(mktemp -d "$cache/run.XXXX")
finish() {
    if [ -n "${FRESH_KEEP:-}" ]; then
        echo "fresh: kept $box" >&2
    else
        rm -rf --one-file-system "$box"
    fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
chmod 755 "$box"
cp -a "$system/." "$box/"
git clone -q "$top" "$box/root/project"

# What the machine knows of its network, and nothing else of it.
cp /etc/resolv.conf /etc/hosts "$box/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$box/etc/ssl/certs/"
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$box/etc/"
for file in /etc/apt/apt.conf.d/*; do
    ! grep -q '^ *Acquire' "$file" || cp "$file" "$box/etc/apt/apt.conf.d/"
done
rm -f "$box"/etc/apt/sources.list.d/*
: >"$box/etc/apt/sources.list"
for file in "${sources[@]}"; do
    sed "s/\b$own\b/$suite/g" "$file" >"$box$file"
done

# The mounts are this command's own: they go with it, however it ends.
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "TERM=${TERM:-dumb}")
for name in http_proxy https_proxy no_proxy; do
    [ -z "${!name:-}" ] || environment+=("$name=${!name}")
done
unshare --mount --pid --fork --kill-child --mount-proc="$box/proc" bash -euc '
    mount --rbind /sys "$1/sys" && mount --make-rslave "$1/sys"
    mount --rbind /dev "$1/dev" && mount --make-rslave "$1/dev"
    box=$1 && shift
    exec chroot "$box" /usr/bin/env -i "$@"' fresh "$box" "${environment[@]}" \
    bash -c 'cd /root/project && exec "$@"' fresh "$@"
