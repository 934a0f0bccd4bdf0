"""Runs the examples with real workers, started by the command line, and shows what became of them."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from fbtasks import FBTasksError

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / ".demo"
shutil.rmtree(FOLDER, ignore_errors=True)
FOLDER.mkdir()
os.environ["FBTASKS_URL"] = os.environ.get("FBTASKS_DEMO_URL") or f"firebird://{FOLDER}/demo.fdb"
os.chdir(HERE)

import article_queue  # noqa: E402  # the apps take their URL from the environment
import invoices_demo  # noqa: E402
import languages_demo  # noqa: E402
import word_count  # noqa: E402

console = Console()


def fbtasks(*arguments: str) -> None:
    console.print(f"\n[bold]$ fbtasks {' '.join(arguments)}[/bold]")
    subprocess.run([sys.executable, "-m", "fbtasks", *arguments], check=True)


def run_worker(module: str, results_left, total: int) -> None:
    """Starts a worker, shows a bar until all tasks have ended, and stops it as an operator would."""
    command = [sys.executable, "-m", "fbtasks", "worker", "-A", module, "-c", "4", "-l", "ERROR"]
    console.print(f"[bold]$ fbtasks {' '.join(command[3:])}[/bold]")
    with (FOLDER / f"{module}.log").open("w") as log:
        worker = subprocess.Popen(command, stderr=log)
        try:
            with Progress(console=console) as progress:
                bar = progress.add_task("tasks", total=total)
                while (left := results_left()) > 0:
                    progress.update(bar, completed=total - left)
                    if worker.poll() is not None:
                        sys.exit((FOLDER / f"{module}.log").read_text())
                    time.sleep(0.05)
                progress.update(bar, completed=total)
        finally:
            worker.terminate()
            worker.wait()


def waiting() -> int:
    connection = article_queue.app.connect()
    try:
        cursor = connection.cursor()
        return cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()[0]
    finally:
        connection.close()


def article() -> None:
    console.rule("The article's queue")
    article_queue.work.delay_many([(10 + 10 * (i % 4),) for i in range(40)])
    run_worker("article_queue", waiting, 40)
    fbtasks("inspect", "stats")
    fbtasks("inspect", "failed")


def words() -> None:
    console.rule("Real input: the words of Python's standard library")
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(str(p) for p in library.rglob("*.py") if "site-packages" not in p.parts)
    connection = word_count.app.connect()
    connection.execute_immediate("CREATE TABLE WORD_COUNT (PATH VARCHAR(1000), WORDS INTEGER)")
    connection.commit()
    word_count.count.delay_many([(path,) for path in paths])
    started = time.monotonic()
    run_worker("word_count", waiting, len(paths))
    spent = time.monotonic() - started
    found = connection.cursor().execute("SELECT COUNT(*), COUNT(DISTINCT PATH), SUM(WORDS) FROM WORD_COUNT").fetchone()
    connection.close()
    expected = sum(word_count.count_words(path) for path in paths)
    console.print(f"{found[0]} files in {spent:.1f} s, {found[2]:,} words; a direct count finds {expected:,}.")
    if (found[0], found[1], int(found[2])) != (len(paths), len(paths), expected):
        sys.exit("The totals differ.")


def changes() -> None:
    console.rule("Rows that appear in a table")
    languages_demo.main(500, FOLDER)


def invoices() -> None:
    console.rule("A schedule, a limit for each customer, and a total at the end")
    invoices_demo.main(100, FOLDER)


try:
    with closing(article_queue.app), closing(word_count.app):
        article()
        words()
    with closing(languages_demo.app):
        changes()
    with closing(invoices_demo.app):
        invoices()
except FBTasksError as error:
    sys.exit(f"Error: {error}")
