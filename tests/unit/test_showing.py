"""Values as texts for people."""

import pytest

from fbtasks.system.showing import command_line, size, split_remedy, with_app


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


def test_a_command_is_quoted_for_the_shell():
    assert command_line("fbtasks schedules resume {}", "same name") == "fbtasks schedules resume 'same name'"
    assert command_line("fbtasks a {} --task {}", ["x", "$(y)"], 7) == "fbtasks a x '$(y)' --task 7"
    assert split_remedy(f"It stands ({command_line('fbtasks a {}', 'b c')})") == ("It stands", "fbtasks a 'b c'")


def test_a_command_names_the_app_where_it_is_known():
    text = "Start one: fbtasks worker -A MODULE -Q q"
    assert with_app(text, "shop:own") == "Start one: fbtasks worker -A shop:own -Q q"
    assert with_app(text, None) == text
