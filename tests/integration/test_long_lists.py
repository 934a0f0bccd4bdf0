"""Lists of many tasks: written as they are read, in memory that does not grow with them."""

import json

from support.programs import program
from support.sql import execute

MANY = """
EXECUTE BLOCK AS
    DECLARE N INTEGER = 0;
BEGIN
    WHILE (N < {count}) DO
    BEGIN
        INSERT INTO QUEUE_HISTORY (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, FINISH_TIME,
                TRY_COUNT, CRASH_COUNT, CONTENT_TYPE, ERROR_TYPE, ERROR_MSG)
            VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 'proj.add', 'default', 11, 0, QUEUE_NOW(), QUEUE_NOW(),
                DATEADD(:N MILLISECOND TO QUEUE_NOW()), 1, 0, 'application/json', 'builtins.ValueError',
                'no number ' || :N || ' ' || RPAD('', 200, 'x'));
        N = N + 1;
    END
END"""


# What the kernel tells the parent of a child begins with the memory of the parent itself.
PROGRAM = """
import atexit, pathlib, re
from fbtasks.__main__ import main
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: pathlib.Path("peak.txt").write_text(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1]))
main()
"""


def peak(project, *arguments):
    """Runs a command. Returns the most memory that it has used, in megabytes, and what it has printed."""
    done = program(PROGRAM, "inspect", "failed", *arguments, env=project.env, cwd=project.folder)
    assert done.returncode == 0, done.stderr
    return int((project.folder / "peak.txt").read_text()) / 1024, done.stdout


def test_a_long_list_takes_no_more_memory_than_a_short_one(project, app):
    count = 4_000
    app.migrate()
    execute(app, MANY.format(count=count))
    few, _ = peak(project)
    lines, shown = peak(project, "--limit", str(count))
    rows, written = peak(project, "--limit", str(count), "--json")
    assert lines < few + 20
    assert rows < few + 20
    assert max(lines, rows) < 100
    assert shown.count("\n") == 1 + count
    found = json.loads(written)
    assert len({row["id"] for row in found}) == count
    assert written == json.dumps(found, indent=2) + "\n"
