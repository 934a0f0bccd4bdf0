#!/bin/sh
# Sets up what the tests of the dashboard in a browser need, beside that of tools/setup.sh.
set -eu

say() { echo "== $*"; }

if ! command -v chromium >/dev/null || [ -z "$(fc-list 2>/dev/null)" ]; then
    if ! command -v apt-get >/dev/null; then
        echo "This system has no apt-get: install Chromium and a font, put 'chromium' on the path, and try again." >&2
        exit 1
    fi
    say "Installing chromium and fonts (apt-get${SUDO:+, by $SUDO}). 'make clean' does not remove them."
    export DEBIAN_FRONTEND=noninteractive
    install="apt-get install -y -q --no-install-recommends chromium fontconfig fonts-dejavu-core fonts-liberation"
    # shellcheck disable=SC2086  # several words
    $SUDO $install >/dev/null 2>&1 || {
        $SUDO apt-get update -q >/dev/null
        $SUDO $install >/dev/null
    }
fi
say "Installing playwright and axe into $VENV, from PyPI"
PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 "$VENV/bin/python" -m pip install -q --disable-pip-version-check -e '.[test-web]'
