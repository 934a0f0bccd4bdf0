#!/usr/bin/env bash
# A Firebird 5 server for the tests, on the loopback interface: without root, without a service, nothing installed.
#
#   tools/server.sh start          starts it, with no user but SYSDBA and no database, and prints its URL
#   tools/server.sh url            prints the URL of the server that runs
#   tools/server.sh stop           ends it, and removes its databases
#   tools/server.sh run COMMAND    starts it, runs COMMAND with FBTASKS_TEST_URL, and stops it however they end
#
# Debian 13 has no Firebird 5, but its program `firebird` is only a listener: it serves the client library and the
# engine of the wheel firebird-embedded. That program and its C libraries are fetched from the package sources of this
# system and unpacked into the folder, once; ICU and libtommath are this system's, as for the embedded engine. It is a
# mixture, for tests alone: `EXECUTE STATEMENT ... AS USER` without a password ends it. FBTASKS_SERVER names its folder
# (default: .server), PYTHON a Python that has the wheel. The exit status is 77 where no such server can be had.
set -euo pipefail

CANNOT=77
RELEASE=trixie
PACKAGES=(firebird4.0-server libc6 libgcc-s1 libstdc++6)
top=$(realpath "$(dirname "$0")/..")
python=${PYTHON:-$top/.venv/bin/python}
box=$(realpath -m "${FBTASKS_SERVER:-$top/.server}")
system=$box/system         # the unpacked packages
run=$box/run               # what one start makes, and a stop removes
log=$box/firebird.log      # of the last one that was stopped
program=$system/usr/lib/firebird/4.0/bin/firebird
libraries=$system/usr/lib/$(uname -m)-linux-gnu
shopt -s nullglob

cannot() {
    echo "server: no Firebird server can be had here: $*" >&2
    exit $CANNOT
}

unpack() {
    local own making apt sources
    own=$(. /etc/os-release && echo "${ID:-}/${VERSION_CODENAME:-}")
    [ "${own%/*}" = debian ] || cannot "this system is ${own%/*}, not debian"
    own=${own#*/}
    sources=(/etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list)
    [ ! -s /etc/apt/sources.list ] || sources+=(/etc/apt/sources.list)
    [ ${#sources[@]} -gt 0 ] || cannot "no package source is configured"

    echo "server: fetching the program firebird of Debian $RELEASE (once)" >&2
    rm -rf "$box"/making.*
    making=$(mktemp -d "$box/making.XXXX")
    mkdir -p "$making"/{sources,state/lists/partial,cache/archives/partial,packages,debian}
    touch "$making/status"
    for file in "${sources[@]}"; do
        sed "s/\b$own\b/$RELEASE/g" "$file" >"$making/sources/$(basename "$file")"
    done
    apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$making/sources"
        -o Dir::State="$making/state" -o Dir::State::status="$making/status" -o Dir::Cache="$making/cache"
        -o Acquire::Languages=none -o APT::Sandbox::User= -o APT::Update::Post-Invoke::=)
    {
        "${apt[@]}" update || true  # a source without that release is no matter: what is missing cannot be fetched
        (cd "$making/packages" && "${apt[@]}" download "${PACKAGES[@]}")
    } >"$box/fetch.log" 2>&1 || {
        tail -n 3 "$box/fetch.log" >&2
        cannot "its packages cannot be fetched; apt-get's messages are in $box/fetch.log"
    }
    for file in "$making"/packages/*.deb; do
        dpkg-deb -x "$file" "$making/debian"
    done
    rm -rf "$making/debian/usr/share" "$system"
    mv "$making/debian" "$system"
    rm -rf "$making" "$box/fetch.log"
}

# Processes of the server are known by the file that they run, which no other program does.
processes() {
    local process
    for process in /proc/[0-9]*; do
        for file in "$libraries"/ld-linux-*.so.*; do
            [ ! "$process/exe" -ef "$file" ] || echo "${process#/proc/}"
        done
    done
}

stop() {
    local process
    # Nothing of it is kept that would have to be written.
    while process=$(processes) && [ -n "$process" ]; do
        kill -KILL $process 2>/dev/null || true
        sleep 0.05
    done
    [ ! -e "$run/root/firebird.log" ] || mv "$run/root/firebird.log" "$log"
    rm -rf "$run"
}

take() {
    mkdir -p "$box"
    exec 9>"$box/lock"
    flock -n 9 || {
        echo "server: the one in $box is in use by another run; FBTASKS_SERVER=FOLDER has one elsewhere" >&2
        exit 1
    }
}

# Starts it, by the command that is given, if any.
start() {
    local engine url port attempt process
    engine=$("$python" -c 'from firebird.embedded import provider; print(provider.FirebirdProvider().root)' 2>/dev/null) ||
        cannot "$python has no firebird-embedded. Run: make test-server. PYTHON names another Python"
    [ -x "$program" ] || unpack
    stop  # that of a run which was killed
    mkdir -p "$run"/{root,data}
    chmod 700 "$run"

    cp -rL "$engine/." "$run/root/"
    ln -s . "$run/root/lib"
    cp "$program" "$run/root/firebird"
    export FIREBIRD=$run/root FIREBIRD_LOCK=$run/lock FIREBIRD_TMP=$run/data
    printf 'security.db = $(dir_secDb)/security5.fdb\n{\n    RemoteAccess = false\n}\n' >"$run/root/databases.conf"
    url=$("$python" - "$run" <<'PROGRAM'
import secrets, sys
from urllib.parse import quote
from firebird.driver import connect, create_database, load_api

root, password = f"{sys.argv[1]}/root", secrets.token_hex(8)
load_api(f"{root}/libfbclient.so.2")
create_database(f"{root}/security5.fdb", user="SYSDBA", charset="UTF8").close()
with connect("security.db", user="SYSDBA") as security:
    security.execute_immediate(f"CREATE USER SYSDBA PASSWORD '{password}' USING PLUGIN Srp")
    security.commit()
print(f"firebird://SYSDBA:{password}@127.0.0.1:PORT/{quote(sys.argv[1])}/data/test.fdb")
PROGRAM
    )
    : >"$run/root/firebird.log"

    for attempt in 1 2 3; do  # another process may take the port that was free
        port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
        printf 'ServerMode = Super\nRemoteBindAddress = 127.0.0.1\nRemoteServicePort = %s\n' "$port" \
            >"$run/root/firebird.conf"
        setsid "$@" "$libraries"/ld-linux-*.so.* --library-path "$run/root:$libraries" "$run/root/firebird" \
            </dev/null >>"$run/root/firebird.log" 2>&1 9>&- &
        process=$!
        disown
        while kill -0 "$process" 2>/dev/null; do
            if (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && kill -0 "$process" 2>/dev/null; then
                echo "${url/PORT/$port}" >"$run/url"
                return
            fi
            sleep 0.05
        done
    done
    cat "$run/root/firebird.log" >&2
    cannot "it ends at once, with the messages above"
}

url() {
    [ -n "$(processes)" ] && cat "$run/url" 2>/dev/null || {
        echo "server: none runs in $box" >&2
        exit 1
    }
}

case "${1:-}" in
    start) take; start; url ;;
    stop) stop ;;
    url) url ;;
    run)
        shift
        take  # before the trap, which would stop the server of the run that has it
        trap stop EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        start setpriv --pdeathsig KILL  # it ends with this process, also when that is killed
        status=0
        FBTASKS_TEST_URL=$(url) "$@" 9>&- || status=$?
        [ -n "$(processes)" ] || {
            cat "$run/root/firebird.log" >&2
            echo "server: it has ended by itself, with the messages above" >&2
            exit 1
        }
        exit $status
        ;;
    *) sed -n 's/^#   /usage: /p' "$0" >&2; exit 2 ;;
esac
