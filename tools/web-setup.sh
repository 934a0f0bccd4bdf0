#!/bin/sh
# Sets up what the tests of the dashboard in a browser need, beside that of tools/setup.sh.
set -eu

say() { echo "== $*"; }

say "Installing playwright and axe into $VENV, from PyPI"
PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 "$VENV/bin/python" -m pip install -q --disable-pip-version-check -e '.[test-web]'

# The driver of playwright needs libatomic.
if ! { command -v chromium && fc-list | grep . && "$VENV/bin/playwright" --version; } >/dev/null 2>&1; then
    if ! command -v apt-get >/dev/null; then
        echo "This system has no apt-get: install Chromium, fonts and libatomic (or what it calls them) and try again."
        exit 1
    fi >&2
    say "Installing chromium, fonts and libatomic1 (apt-get${SUDO:+, by $SUDO}). 'make clean' does not remove them."
    export DEBIAN_FRONTEND=noninteractive
    install="apt-get install -y -q --no-install-recommends chromium fontconfig fonts-dejavu-core fonts-liberation libatomic1"
    # shellcheck disable=SC2086  # several words
    $SUDO $install >/dev/null 2>&1 || {
        $SUDO apt-get update -q >/dev/null
        $SUDO $install >/dev/null
    }
fi
