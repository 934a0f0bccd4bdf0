#!/bin/sh
# Sets up a working copy: a virtual environment, the package in it, and the libraries of the system that the engine needs.
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

say "This creates the virtual environment $VENV and installs fbtasks, Firebird's engine and the test tools into it, from PyPI."
say "What is missing of python3, python3-venv, libtommath1, libtomcrypt1 and ICU is installed with apt-get${SUDO:+, by $SUDO}."
say "Nothing else of this system is changed. 'make clean' removes $VENV; packages of apt-get stay."

command -v "$PYTHON" >/dev/null || install_packages python3
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "fbtasks needs Python 3.11 or newer; $PYTHON is $("$PYTHON" --version). Try: make PYTHON=python3.12 ..." >&2
    exit 1
}
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
[ -x "$VENV/bin/python" ] || {
    say "Creating the virtual environment $VENV"
    "$PYTHON" -m venv "$VENV"
}
say "Installing fbtasks and its test tools into $VENV"
"$VENV/bin/python" -m pip install -q --disable-pip-version-check -e '.[dev]'

# What apt-get calls the libraries that are missing; that of ICU as an expression, since its package's name holds a version.
missing=$("$VENV/bin/python" -m fbtasks.firebird.embedded.libraries | cut -f 1)
# shellcheck disable=SC2086  # several words
[ -z "$missing" ] || install_packages $missing

say "Opening a database with the embedded engine"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$VENV/bin/python" -m fbtasks migrate --url "firebird://$folder/setup.fdb" >/dev/null
