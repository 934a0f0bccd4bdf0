"""A standard error that nothing reads any more: the worker goes on, and loses lines at most, which it counts."""

import fcntl
import os
import re
import select
import subprocess
import sys
import threading
import time

import pytest

from fbtasks import FBTasks
from fbtasks.worker.logs import stream as logs_stream
from fbtasks.worker.logs.stream import Stream

pytestmark = pytest.mark.acceptance

PLAIN = """
    @app.task
    def add(a, b): return a + b
"""
OWN_HANDLER = """
    import logging

    logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
"""


@pytest.fixture
def pipe():
    """The smallest there is."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    yield read, write
    os.close(read)
    os.close(write)


def has_more(read, seconds):
    """Whether there is something to read before *seconds* have passed."""
    return bool(select.select([read], [], [], seconds)[0])


def read_until(read, wanted):
    text = b""
    while wanted not in text:
        text += os.read(read, 65536)
    return text


@pytest.mark.parametrize("source", [PLAIN, OWN_HANDLER + PLAIN], ids=["plain", "own handler"])
def test_a_worker_whose_log_nothing_reads_works_and_stops(project, pipe, wait_for, source):
    read, write = pipe
    project.write(source)
    producer = FBTasks("producer", project.url)
    command = [sys.executable, "-m", "fbtasks", "worker", "-A", "proj", "-c", "1"]
    worker = subprocess.Popen(command, cwd=project.folder, env=project.env, stderr=write)
    try:
        results = [producer.send_task("proj.add", (number, 1)) for number in range(120)]
        assert [result.get(timeout=120) for result in results] == [number + 1 for number in range(120)]
        missing, text = {int(result.id) for result in results}, b""
        while missing:  # nothing is lost; of a task that is given back and run later, more than one line is written
            assert has_more(read, 60), (missing, text)
            text += os.read(read, 65536)
            missing -= {int(number) for number in re.findall(rb"INFO Task (\d+) .*succeeded", text)}
        more = [producer.send_task("proj.add", (number, 1)) for number in range(80)]
        assert more[-1].get(timeout=120) == 80
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
        producer.close()


def test_what_waits_is_written_in_order_and_what_is_lost_is_counted(pipe):
    read, write = pipe
    with open(write, "w", encoding="utf-8", closefd=False) as file:
        stream = Stream(file, most=1000)
        for number in range(3000):
            stream.write(f"line {number:04}\n")
        text = []
        reader = threading.Thread(target=lambda: text.append(read_until(read, b"last\n")))
        reader.start()
        stream.finish()
        stream.write("last\n")
        reader.join(20)
    lines = text[0].decode().splitlines()
    told = [line for line in lines if line.startswith("line")]
    assert told == [f"line {number:04}" for number in range(len(told))]
    lost = 3000 - len(told)
    assert lost > 0
    assert lines[len(told) :] == [f"fbtasks: {lost} lines of the log lost: nothing read them.", "last"]


def test_what_is_written_at_once_is_whole_lines_that_a_pipe_takes_in_one_piece(pipe, monkeypatch):
    _, write = pipe
    pieces = []
    monkeypatch.setattr(logs_stream, "write_all", lambda _, data: pieces.append(data) or time.sleep(0.01))
    lengths = [3000, 900, 100, 5000, 10, 4000, 4000, 1]
    with open(write, "w", encoding="utf-8", closefd=False) as file:
        stream = Stream(file)
        for length in (1, *lengths):
            stream.write(f"{length * 'x'}\n")
        stream.finish()
    lines = [piece.splitlines() for piece in pieces]
    assert [len(line) for piece in lines for line in piece] == [1, *lengths]
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert any(len(piece) > 1 for piece in lines)
    assert all(len(piece) <= 4096 or len(lines) == 1 for piece, lines in zip(pieces, lines, strict=True))
