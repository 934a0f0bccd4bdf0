#!/bin/sh
# Sets up a working copy: the libraries that the engine needs, a virtual environment, and the package in it.
set -eu

say() { echo "== $*"; }

install_packages() {
    if ! command -v apt-get >/dev/null; then
        echo "This system has no apt-get: install $* (or what it calls them) and try again." >&2
        exit 1
    fi
    say "Installing $* (apt-get)"
    export DEBIAN_FRONTEND=noninteractive
    $SUDO apt-get install -y -q "$@" >/dev/null 2>&1 || {
        $SUDO apt-get update -q >/dev/null
        $SUDO apt-get install -y -q "$@" >/dev/null
    }
}

command -v "$PYTHON" >/dev/null || install_packages python3
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "fbtasks needs Python 3.11 or newer; $PYTHON is $("$PYTHON" --version). Try: make PYTHON=python3.12 ..." >&2
    exit 1
}
"$PYTHON" -c 'import ctypes; ctypes.CDLL("libtommath.so.1")' 2>/dev/null || install_packages libtommath1
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
[ -x "$VENV/bin/python" ] || {
    say "Creating the virtual environment $VENV"
    "$PYTHON" -m venv "$VENV"
}
say "Installing fbtasks and its test tools into $VENV"
"$VENV/bin/python" -m pip install -q --disable-pip-version-check -e '.[dev]'
