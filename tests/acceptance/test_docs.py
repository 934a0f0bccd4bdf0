"""The documents: the tutorial's commands run, and what exists is described."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import click
import pytest
from support.forkserver import forkserver
from support.programs import command_line_in
from support.rules import TRANSITIONS
from support.sql import one, rows

from fbtasks import FBTasks
from fbtasks.cli import main
from fbtasks.states import State

DOCS = Path(__file__).parents[2] / "docs"


def follow(tmp_path, page):
    """Does what a tutorial says, in its order: writes its files, runs its commands. Returns what they print."""
    printed = ""
    for language, block in re.findall(r"```(python|sql|sh)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        if named := re.match(r"(?:#|--) (\S+\.(?:py|sql))\n", block):
            (tmp_path / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / named[1]).write_text(block)
        for part in parts(block) if language == "sh" else ():
            done = do(part, tmp_path, environment())
            assert done.returncode == 0, done.stderr
            printed += done.stdout
    return printed


def environment():
    """That of a shell in which fbtasks is installed, and no database is named."""
    found = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    found.pop("FBTASKS_URL", None)
    return found


FORMS = re.compile(r"""fbtasks [\w .-]+|python (\w+\.py)( [\w ]+)?|python -c "([^"]*)\"""")
"""The commands that need no shell: one of ours, a program in a file, a program."""


def parts(block):
    """The lines of *block* that need no shell, and what is between them, in their order."""
    found = [""]
    for line in block.splitlines(keepends=True):
        if FORMS.fullmatch(line.rstrip("\n")):
            found += [line, ""]
        else:
            found[-1] += line
    return [part for part in found if part]


def do(part, folder, env):
    """Runs a command of ours in this process, programs and workers in one that is forked, and all else in a shell."""
    match = FORMS.fullmatch(part.rstrip("\n"))
    if match is None:
        how = {"cwd": folder, "env": env, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run(["sh", "-e", "-c", part], **how)
    words = shlex.split(part)
    if words[0] == "python":
        path = folder / str(match[1])
        code = f"__file__ = {str(path)!r}\n{path.read_text()}" if match[1] else match[3]
        return forkserver.run(words[2:] if match[1] else [], folder, env, 60, code=code)
    if words[1] == "worker":
        return forkserver.run(words[1:], folder, env, 60)
    return command_line_in(folder, env, *words[1:])


@pytest.mark.long
@pytest.mark.acceptance
@pytest.mark.embedded("the page has a file of its own")
def test_the_tutorial(tmp_path):
    printed = follow(tmp_path, "tutorial.md")
    assert printed.startswith("1\n")
    assert re.search(r"^default +2 .*none$", printed, re.MULTILINE)
    assert "\n5\n" in printed
    assert "RuntimeError: Some error" in printed
    assert "\nenqueued 4\n" in printed
    waiting, ended = printed.partition("enqueued ")[2].split("cancelled.")
    assert waiting.count("hello.tasks.add") == 1
    assert ended.count("hello.tasks.add") == 2


@pytest.mark.acceptance
@pytest.mark.embedded("the page has a file of its own")
def test_the_page_of_batches(tmp_path):
    printed = follow(tmp_path, "how-to/batches.md")
    assert "['PENDING', 'PENDING', 'PENDING']\n" in printed
    assert "3 calls, 12 clicks\n" in printed
    assert "one of 3" in printed


@pytest.mark.acceptance
@pytest.mark.embedded("the page has a file of its own")
def test_the_page_of_traces(tmp_path):
    printed = follow(tmp_path, "how-to/tracing.md")
    spans = re.findall(r'"name": "(\w+) shop.invoice".*?"trace_id": "(\w+)"', printed, re.DOTALL)
    assert [name for name, _ in spans] == ["send", "process"]
    assert len({trace for _, trace in spans}) == 1


@pytest.mark.long
@pytest.mark.acceptance
@pytest.mark.embedded("the page has a file of its own")
def test_the_tutorial_of_changes(tmp_path):
    printed = follow(tmp_path, "tutorial-orders.md")
    assert printed.count("Ann: 19.90 with thanks") == 2
    assert printed.count("Bob: 5.00 with thanks") == 1
    assert "order 3 needs a" in printed
    assert "ORDERS" in printed


OTHER = """
from fbtasks import FBTasks
app = FBTasks("other")
@app.task(name="post")
def post(document): return document
@app.task(name="mail")
def mail(to): return to
"""


HEALTH = """
import journal, shop
from fbtasks.queue.operations.workers import get_health
journal.MOST = 0
print(*get_health(shop.app.database, 300).problems['journal'])
(sheet,) = shop.app.features['journal'].sheets()
(first,) = shop.app.database.use(lambda session: sheet.lines(session, None, 1))
(second,) = shop.app.database.use(lambda session: sheet.lines(session, first.key, 9))
print(first.cells, second.key, sheet.actions['strike'].do(shop.app, first.key, {}))
"""


@contextmanager
def worker(folder, *arguments):
    """A worker in *folder*, for the block."""
    arguments = ["worker", "-c", "1", "-Q", "shared", *arguments]
    with open(os.devnull, "w") as nothing:
        process = forkserver.start(arguments, folder, environment(), stderr=nothing)
    with process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.acceptance
@pytest.mark.embedded("the page has a file of its own")
def test_the_page_of_features_beside_a_program_without_that_feature(tmp_path, wait_for):
    (tmp_path / "other.py").write_text(OTHER)
    with closing(FBTasks("looks", f"firebird://{tmp_path}/fbtasks.fdb")) as app:
        app.task(name="mail")(print).apply_async(("first",), queue="shared")
        with worker(tmp_path, "-A", "other") as other:
            wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") == 1)
            printed = follow(tmp_path, "how-to/features.md")
            lines = re.findall(r"ledger: task (\d+) (\w+)\n", printed)
            assert sorted(state for _, state in lines) == ["failed", "succeeded"]  # two children end them in any order
            assert re.search(r"^journal +1 +yes +ENDED$", printed, re.MULTILINE)
            assert ": migrated the feature journal to version 1.\n" in printed
            told = do(f'python -c "{HEALTH}"', tmp_path, environment())
            problem, shown = told.stdout.splitlines()
            assert problem == "journal: more than 0 tasks have failed today", told.stderr
            assert re.fullmatch(
                r"{'Journal': 'ledger', 'Task': TaskRef\(id=\d+, text=''\)} 2 The line 1 is gone\.", shown
            )
            put = "import shop; print(shop.{}.apply_async(({!r},), queue='shared').id)"
            post, mail = (
                do(f'python -c "{put.format(task, 7)}"', tmp_path, environment()).stdout.strip()
                for task in ("post", "mail")
            )
            assert app.AsyncResult(mail).get(timeout=60) == 7
            wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = ?", State.PARKED) == 1)
            assert other.poll() is None
            with worker(tmp_path, "-A", "shop"):
                assert app.AsyncResult(post).get(timeout=60) == 7
        assert rows(app, "SELECT TASK_ID FROM JOURNAL ORDER BY ID")[-1] == (int(post),)


def test_every_command_is_described():
    text = (DOCS / "reference" / "cli.md").read_text()
    for name, (_, line) in main.table(click.Context(main)).items():
        command = main.get_command(click.Context(main), name)
        assert command.help.partition("\n")[0] == line
        assert f"| `{name}` |" in text
        if isinstance(command, click.Group):
            inside = command.table(click.Context(command))
            assert all(f"`{inner}" in text for inner in inside)
            for inner, (_, help_text) in inside.items():
                found = command.get_command(click.Context(command), inner)
                assert (found.name, found.help.partition("\n")[0]) == (inner, help_text)


def test_the_states_are_those_of_the_code():
    for line in (DOCS / "reference" / "states.md").read_text().splitlines():
        if match := re.match(r"\| (\d+) \| (\w+) \|.*\| ([^|]*) \|$", line):
            leads = {part.strip().split(",")[0] for part in re.sub(r", by .*", "", match[3]).split(",") if part.strip()}
            assert leads == {state.name.lower() for state in TRANSITIONS[State(int(match[1]))]}


def anchors(page):
    """What a link to a heading of *page* has behind its ``#``."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        yield re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


def test_links_lead_somewhere():
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        for link in re.findall(r"\]\(([^)\s:]+)\)", page.read_text()):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_the_tests_that_are_said_to_show_a_promise_exist():
    text = (DOCS / "explanation" / "guarantees.md").read_text()
    tests = DOCS.parent / "tests"
    there = {name for path in tests.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert set(re.findall(r"\b(test_\w+)`", text)) <= there
    assert all((tests / path).exists() for path in re.findall(r"`(\w+/test_\w+\.py)", text))


def test_nobody_is_told_to_ask_an_index_for_fbtasks():
    """That name is not this project's there."""
    root = DOCS.parent
    files = [
        root / "README.md",
        *DOCS.rglob("*.md"),
        *(root / "fbtasks").rglob("*.py"),
        *(root / "examples").rglob("*.py"),
    ]
    found = [
        f"{file.relative_to(root)}: {line.strip()}"
        for file in files
        for line in file.read_text().splitlines()
        if re.search(r"pip install\b[^#]*[ '\"]fbtasks\b(?! @)", line) and "a bare `pip install fbtasks`" not in line
    ]
    assert found == []
