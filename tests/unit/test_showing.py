"""Values as texts for people."""

import pytest

from fbtasks.system.showing import size


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (12_345_678, "12.3 MB"),
        (999_999, "1 MB"),
        (5e14, "500 TB"),
    ],
)
def test_a_number_of_bytes_is_one_short_word(number, text):
    assert size(number) == text
