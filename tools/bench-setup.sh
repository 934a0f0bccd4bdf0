#!/bin/sh
# Sets up what the benchmark compares fbtasks with: servers from the system's packages, Python packages in an environment
# of their own. What cannot be installed is said, and left out of the comparison.
set -u

say() { echo "== $*"; }

install_packages() {
    say "Installing $* (apt-get)"
    export DEBIAN_FRONTEND=noninteractive
    # RUNLEVEL=1: the packages' own services are not started; the benchmark starts servers of its own.
    RUNLEVEL=1 $SUDO apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 || {
        $SUDO apt-get update -q >/dev/null 2>&1
        RUNLEVEL=1 $SUDO apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1
    } || say "Not installed: $*"
}

if command -v apt-get >/dev/null; then
    command -v redis-server >/dev/null || install_packages redis-server
    [ -n "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || command -v initdb >/dev/null || install_packages postgresql
fi
[ -x "$BENCH_VENV/bin/python" ] || {
    say "Creating the virtual environment $BENCH_VENV"
    "$PYTHON" -m venv "$BENCH_VENV" || exit 1
}
say "Installing the peers into $BENCH_VENV"
sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$1" | while read -r requirement; do
    "$BENCH_VENV/bin/python" -m pip install -q --disable-pip-version-check "$requirement" >/dev/null 2>&1 \
        || say "Not installed: $requirement"
done
