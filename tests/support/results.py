"""What tests ask of results."""

import pytest


def failure(result):
    """The exception that ``get()`` raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the callers look at it
        result.get(timeout=10)
    return caught.value
