"""A list that may be longer than memory has room for."""

import gc
import warnings

import pytest

from fbtasks.queue.spool import Spool


def test_it_is_read_any_number_of_times():
    with Spool(range(1_500)) as spool:
        assert [*spool] == [*spool] == [*range(1_500)]
        assert next(iter(spool)) == 0  # and what was begun is not gone on with
        assert [*spool] == [*range(1_500)]


def test_what_cannot_be_listed_leaves_no_open_file():
    def items():
        yield 1
        raise ValueError("no permission")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="no permission"):
            Spool(items())
        gc.collect()
    assert caught == []
