"""Values as texts for people."""

import pytest

from fbtasks.system.showing import size, split_remedy


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


@pytest.mark.parametrize(
    ("text", "said", "command"),
    [
        (
            "It is old. Run: fbtasks migrate --url firebird:///q.fdb",
            "It is old. Run",
            "fbtasks migrate --url firebird:///q.fdb",
        ),
        ("It is old. Run: fbtasks migrate, with the same URL", "It is old. Run", "fbtasks migrate, with the same URL"),
        ("It waits for a limit (fbtasks limits clear mail)", "It waits for a limit", "fbtasks limits clear mail"),
        ("Run: fbtasks migrate, and start it again", "Run: fbtasks migrate, and start it again", None),
    ],
)
def test_a_message_is_cut_before_the_command_with_which_it_ends(text, said, command):
    assert split_remedy(text) == (said, command)
