"""A list that may be longer than memory has room for."""

import gc
import warnings

import pytest

from fbtasks.queue.spool import PART, Spool


def test_it_is_read_any_number_of_times():
    with Spool(range(3 * PART + 1)) as spool:
        assert [*spool] == [*spool] == [*range(3 * PART + 1)]
        assert [*spool.first(2)] == [0, 1]


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
