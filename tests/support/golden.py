"""Files that tests compare what they find with."""

import os


def kept(path, found):
    """The lines of the file *path*, which FBTASKS_WRITE=1 has written anew as *found*: read what has changed in it."""
    if os.environ.get("FBTASKS_WRITE"):
        path.write_text("".join(f"{line}\n" for line in found), "utf-8")
    return path.read_text("utf-8").splitlines()
