"""Lines of a worker's log that are written together."""

import logging

import pytest

from fbtasks.worker import logs


@pytest.fixture
def log(tmp_path):
    """A logger whose lines go to a file, and the file."""
    path = tmp_path / "log"
    handler = logs.Lines(logs.LogOptions(file=str(path)))
    root = logging.getLogger()
    root.addHandler(handler)
    logger = logging.getLogger("test_log_lines")
    logger.setLevel(logging.INFO)
    yield logger, path
    root.removeHandler(handler)
    handler.close()


def numbers(path):
    return [int(line.rsplit(" ", 1)[1]) for line in path.read_text().splitlines()]


def test_lines_that_are_logged_together_are_written_at_the_end_also_after_an_error(log):
    logger, path = log
    logger.info("line %d", 0)
    with pytest.raises(ValueError, match="inside"), logs.together():
        for number in range(1, 500):
            logger.info("line %d", number)
        assert numbers(path) == [0]
        raise ValueError("inside")
    logger.info("line %d", 500)
    assert numbers(path) == list(range(501))


def test_what_is_written_at_once_is_whole_lines_that_a_pipe_takes_in_one_piece(log, monkeypatch):
    logger, _ = log
    pieces = []
    monkeypatch.setattr(logs, "write_all", lambda _, data: pieces.append(data))
    lengths = [3000, 900, 100, 5000, 10, 4000, 4000, 1]
    with logs.together():
        for length in lengths:
            logger.info("%s", length * "x")
    lines = [piece.splitlines(keepends=True) for piece in pieces]
    assert [len(line.rsplit(b" ", 1)[1]) - 1 for piece in lines for line in piece] == lengths
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert [len(piece) for piece in lines] == [3, 1, 2, 2]
    assert all(len(b"".join(piece)) <= 4096 or len(piece) == 1 for piece in lines)
