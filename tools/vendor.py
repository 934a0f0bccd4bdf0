"""Fetches the files of npm packages that the dashboard serves, and writes down where each is from.

    python tools/vendor.py             those that VENDORED.json names, anew
    python tools/vendor.py idiomorph@0.8.0=dist/idiomorph.min.js:idiomorph.js

The last form adds or replaces one: PACKAGE@VERSION=PATH IN THE PACKAGE:NAME HERE. Needs npm.
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

STATIC = Path(__file__).parents[1] / "fbtasks" / "features" / "web" / "static"
LIST = STATIC / "VENDORED.json"


def npm(*words, folder=None):
    """Returns what npm prints as JSON."""
    done = subprocess.run(["npm", *words, "--json"], cwd=folder, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def fetch(package, version, path, name):
    """Writes the file, and returns its line of VENDORED.json. Ends with an error where npm's checksum does not hold."""
    facts = npm("view", f"{package}@{version}", "dist.integrity", "license")
    with tempfile.TemporaryDirectory() as folder:
        (packed,) = npm("pack", f"{package}@{version}", folder=folder)
        archive = Path(folder) / packed["filename"]
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != facts["dist.integrity"]:
            sys.exit(f"{package}@{version}: the archive is not the one of the registry.")
        with tarfile.open(archive) as files:
            data = files.extractfile(f"package/{path}").read()
    (STATIC / name).write_bytes(data)
    return {
        "package": package,
        "version": version,
        "path": path,
        "license": facts["license"],
        "integrity": facts["dist.integrity"],
        "sha256": hashlib.sha256(data).hexdigest(),
    }


known = json.loads(LIST.read_text()) if LIST.exists() else {}
for word in sys.argv[1:]:
    source, _, place = word.partition("=")
    package, _, version = source.rpartition("@")
    path, _, name = place.partition(":")
    known[name] = {"package": package, "version": version, "path": path}
for name, line in known.items():
    known[name] = fetch(line["package"], line["version"], line["path"], name)
LIST.write_text(json.dumps(known, indent=2) + "\n")
