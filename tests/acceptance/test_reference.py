"""The pages against what they describe: names, options of commands and of calls, columns; and their examples."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import click
import pytest
from support.sql import rows

import fbtasks
from fbtasks import FBTasks, Task
from fbtasks.app import OnChange, OnEvent, PollTable, QueueArguments, TaskOptions
from fbtasks.cli import main
from fbtasks.config import Settings
from fbtasks.features.limits.definition import LimitOptions
from fbtasks.features.limits.options import LimitedTask
from fbtasks.features.logs.options import LoggedTask
from fbtasks.features.schedules.definition import ScheduleOptions
from fbtasks.features.sources.task import FedTaskOptions
from fbtasks.tasks.declare import options_of
from fbtasks.tasks.options import CallOptions
from fbtasks.testing import drain

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
COMMON = {"--url", "-A", "--app", "--json", "--wide"}


def sections(page, level="##"):
    """The text of each section by its heading."""
    parts = re.split(rf"^{level} (.*)$", (REFERENCE / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(command, path=()):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))
    else:
        yield " ".join(path), command


def test_every_public_name_has_its_section():
    described = sections("api.md")
    assert set(described) == set(fbtasks.__all__)
    assert all(text.strip() for text in described.values())


@pytest.mark.parametrize("kind", [FBTasks, Task, fbtasks.AsyncResult])
def test_public_members_are_described(kind):
    text = sections("api.md")[kind.__name__]
    internal = {
        "FBTasks": {
            "load",
            "queues_served",
            "queues_known",
            "features",
            "task_options",
            "fed_options",
            "known_task",
            "call_by_name",
            "enqueue_calls",
            "add_hooks",
            "path",
        },
        "Task": {
            "call",
            "enqueue",
            "step",
            "bound_to",
            "names",
            "is_async",
            "in_order",
            "prepared",
            "is_called",
            "check_callable",
            "invocation",
            "parameters",
            "subscription",
        },
    }.get(kind.__name__, set())
    members = {name for each in kind.__mro__[:-1] for name in vars(each) if not name.startswith("_")} - internal
    missing = {name for name in members if not re.search(rf"`(await )?{name}\b|\b{name}`", text)}
    assert missing == set()


def test_every_field_of_a_request_is_described():
    text = sections("api.md")["Request"]
    assert all(f"`{name}`" in text for name in fbtasks.Request.__dataclass_fields__)


SAID_OTHERWISE = {
    "a number", "at once", "json and serializer", "module and function", "the app's", "the app's default",
    "the primary key", "the task's",
}  # fmt: skip
"""What the page says for a default of None, where it is not None that then counts."""


def as_said(default):
    """A default as the page writes it."""
    match default:
        case timedelta():
            return f"{default.days} day{'s' if default.days > 1 else ''}"
        case str():
            return f'"{default}"'
        case float():
            return f"{default:g}"
        case _:
            return {64 * 1024 * 1024: "64 MiB"}.get(default, str(default))


@pytest.mark.parametrize(
    ("declared", "heading"),
    [
        (Settings, "FBTasks(name"),
        (TaskOptions, "@app.task"),
        (CallOptions, "apply_async"),
        (QueueArguments, "app.queue"),
        (LimitOptions, "app.limit"),
        (ScheduleOptions, "app.add_periodic"),
        (OnChange, "@app.on_change"),
        (OnEvent, "@app.on_event"),
        (PollTable, "@app.poll_table"),
    ],
)
def test_every_option_is_described_with_its_default(declared, heading):
    text = next(text for title, text in sections("options.md").items() if title.startswith(heading))
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", text, re.MULTILINE)
    table = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    options = dict(options_of(declared))
    if declared is Settings:
        del options["name"], options["url"]  # in the heading
    elif declared is QueueArguments:
        del options["name"]
    elif issubclass(declared, FedTaskOptions):  # those of @app.task have their own table
        of_tasks = options_of(FedTaskOptions).keys() | options_of(LimitedTask).keys() | options_of(LoggedTask).keys()
        of_tasks |= {"table", "event"}
        options = {name: options[name] for name in options.keys() - of_tasks}
    assert table.keys() - ({"args", "kwargs"} - options.keys()) == options.keys()
    for name, option in options.items():
        said, default = table[name], option.parameter.default
        assert said == as_said(default) or (default is None and said in SAID_OTHERWISE), name


def test_every_option_of_every_command_is_described_and_exists():
    described = sections("cli.md")
    assert all(f"`{name}" in described["Common options"] for name in COMMON)
    seen = set()
    for name, command in commands(main):
        text = next(text for heading, text in described.items() if f"`{name}`" in heading)
        options = {opt for p in command.params if isinstance(p, click.Option) for opt in p.opts}
        table = set(re.findall(r"`(--?[a-zA-Z-]+)", "".join(re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE))))
        assert options - COMMON - table == set(), name
        assert table - options == set(), name
        assert name == "worker" or {"--url", "-A"} <= options, name
        seen.add(name)
    known = {found for heading in described for found in re.findall(r"`([a-z ]+)`", heading)}
    assert known == seen


def test_defaults_on_the_page_are_those_of_the_program():
    described = sections("cli.md")
    for name, option, default in [
        ("worker", "--grace SECONDS", "30"),
        ("worker", "--lease SECONDS", "30"),
        ("worker", "--pool POOL", "`processes`"),
        ("health", "--max-age SECONDS", "300"),
        ("health", "--max-lag SECONDS", "900"),
        ("inspect failed", "--limit N", "50"),
        ("result", "--timeout SECONDS", "0"),
    ]:
        command = dict(commands(main))[name]
        real = next(p.default for p in command.params if option.split()[0] in p.opts)
        text = next(text for heading, text in described.items() if f"`{name}`" in heading)
        shown = re.search(rf"`{option}` \| (\S+) \|", text)[1]
        assert shown == default
        assert str(shown.strip("`")) in (str(real), str(real).removesuffix(".0"))


def test_every_column_of_every_table_is_described(app):
    described = sections("schema.md")
    app.migrate()
    columns = (
        "SELECT TRIM(F.RDB$RELATION_NAME), TRIM(F.RDB$FIELD_NAME) FROM RDB$RELATION_FIELDS F "
        "JOIN RDB$RELATIONS R ON R.RDB$RELATION_NAME = F.RDB$RELATION_NAME "
        "WHERE F.RDB$RELATION_NAME STARTING WITH 'QUEUE_' AND F.RDB$RELATION_NAME NOT STARTING WITH 'QUEUE_CALL_'"
    )
    real = set(rows(app, columns))
    names = rows(
        app,
        "SELECT TRIM(RDB$PACKAGE_NAME), TRIM(RDB$PROCEDURE_NAME) FROM RDB$PROCEDURES "
        "WHERE RDB$PACKAGE_NAME IN ('FBTASKS', 'FBTASKS_TASKS')",
    )
    procedures = {f"{package}.{name}" for package, name in names}
    shown = {
        (table, column)
        for table, text in described.items()
        if table.startswith("QUEUE_")
        for cell in re.findall(r"^\| ([A-Z][A-Z0-9_, ]*) \|", text, re.MULTILINE)
        for column in cell.split(", ")
    }
    assert real - shown == set(), "columns that docs/reference/schema.md does not describe"
    assert shown - real == set(), "columns that docs/reference/schema.md describes and the database does not have"
    named = set(re.findall(r"^\| (FBTASKS\w*\.\w+) \|", described["Procedures for applications"], re.MULTILINE))
    assert named == procedures


@pytest.mark.thorough
@pytest.mark.acceptance
@pytest.mark.embedded("the page has a file of its own")
def test_the_testing_pages_example_is_a_test_that_passes(tmp_path):
    (tmp_path / "tests").mkdir()
    for block in blocks("docs/how-to/testing.md", "python"):
        if name := re.match(r"# ([\w/]+\.py)\n", block):
            (tmp_path / name[1]).write_text(block)
    (tmp_path / "pyproject.toml").write_text(blocks("docs/how-to/testing.md", "toml")[0])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-W", "error"]
    command += ["--basetemp", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    assert (tmp_path / "run/fbtasks-template.fdb").exists()  # of which both processes have a copy


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


GROUPS = ("features", "inspect", "limits", "schedules", "subscriptions")
MADE_BY_A_PAGE = ("docs/how-to/features.md", "journal")
"""A command that the feature on a page brings, and the page."""
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_examples_are_valid(page):
    """Python compiles; commands of fbtasks exist, with the options that they are given."""
    for block in blocks(page, "python"):
        compile(block, page, "exec", flags=0x2000)  # await may stand at the top, as in an asyncio prompt
    for block in blocks(page, "sh"):
        subprocess.run(["sh", "-n"], input=block, text=True, check=True)
        for line in block.splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["fbtasks"]:
                names = [words[1]] + ([words[2]] if words[1] in GROUPS else [])
                if (page, " ".join(names)) == MADE_BY_A_PAGE:
                    continue
                command = dict(commands(main))[" ".join(names)]
                known = {opt for p in command.params for opt in p.opts}
                given = {
                    re.split("[ =]", word)[0] for word in words[1 + len(names) :] if re.match(r"--?[a-zA-Z]", word)
                }
                assert given <= known, line


def test_the_readmes_example_runs(project):
    module, calls, handler = blocks("README.md", "python")
    (project.folder / "shop.py").write_text(module)
    project.python(calls)
    done = project.run("worker", "-A", "shop", "-c", "1", "--burst")
    assert "Traceback" not in done.stderr
    assert project.run("result", "1").stdout == '"invoice 4711"\n'
    assert project.run("result", "3").stdout == '"invoice 4713"\n'
    assert project.run("inspect", "scheduled").stdout.count("send_invoice") == 1
    (project.folder / "shop.py").write_text(f"{module}\n\n{handler}")
    table = "CREATE TABLE ORDERS (ID INTEGER PRIMARY KEY, STATUS VARCHAR(10))"
    project.run("sql", "--write", "-c", table)
    project.run("subscriptions", "apply", "-A", "shop")
    for statement in ("INSERT INTO ORDERS VALUES (1, 'NEW')", "UPDATE ORDERS SET STATUS = 'PAID'"):
        project.run("sql", "--write", "-c", statement)
    assert "receipt {" in project.run("worker", "-A", "shop", "-c", "1", "--burst").stdout


def test_the_sql_pages_statements_run(app):
    """On the engine itself, one after the other, trigger and all."""
    first, trigger, outcome = blocks("docs/how-to/sql.md", "sql")
    app.migrate()
    sent = []
    app.task(name="shop.send_invoice")(lambda order: sent.append(order) or order)
    app.task(name="shop.report", queue="reports")(lambda year: year)
    with app.connect() as connection:
        connection.execute_immediate("CREATE TABLE ORDERS (ID INTEGER)")
        connection.commit()
        with connection.cursor() as cursor:
            for statement in first.split(";\n"):
                if statement.strip():
                    cursor.execute(statement)
                    assert len(cursor.fetchone()) >= 1
        connection.execute_immediate(trigger)
        connection.commit()
        connection.execute_immediate("INSERT INTO ORDERS (ID) VALUES (12)")
        connection.commit()
    drain(app)
    assert sorted(sent) == [12, 4711]
    with app.connect() as connection, connection.cursor() as cursor:
        report = cursor.execute("SELECT ID FROM QUEUE_TASK WHERE NAME = 'shop.report' AND STATE = 1").fetchone()[0]
        for line, wanted in zip(outcome.replace("17", "?").splitlines(), [(10, b"4711", None), (1,)], strict=True):
            known = int(cursor.execute("SELECT MIN(ID) FROM QUEUE_HISTORY").fetchone()[0])
            cursor.execute(line.partition(";")[0], (known if wanted[0] == 10 else report,))
            assert cursor.fetchone() == wanted
        connection.commit()
