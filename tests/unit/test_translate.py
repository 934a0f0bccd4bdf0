"""What the driver's errors become. The codes are those of real answers; here the errors are made by hand."""

import socket

import pytest
from firebird.driver import DatabaseError as DriverError

from fbtasks.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    DatabaseUnavailable,
    DuplicateKey,
    StatementRefused,
)
from fbtasks.firebird.driver.translate import connection_was_lost, translate
from fbtasks.url import DatabaseURL


def refusal(text, *codes):
    error = DriverError(text)
    error.gds_codes = codes
    return error


# As a server of version 3.0.11 answered over TCP, the second with DatabaseAccess = Restrict.
OPEN = 'I/O error during "open" operation for file "tmp/x.fdb"\n-Error while trying to open file'
ANSWERS = [
    refusal(OPEN, 335544344, 335544734),
    refusal("Use of database at location /tmp/tmp/x.fdb is not allowed by server configuration", 335544831, 335545081),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=["missing", "restricted"])
def test_a_path_without_its_slash_is_corrected_when_the_server_cannot_open_it(answer):
    error = translate(answer, DatabaseURL.parse("firebird://ann:secret@h:3050/tmp/x.fdb"), connecting=True)
    assert isinstance(error, DatabaseUnavailable)
    assert str(error).startswith("firebird://ann:***@h:3050/tmp/x.fdb cannot be opened (")
    assert str(error).endswith("A path on the server has a slash of its own: firebird://ann:***@h:3050//tmp/x.fdb")
    assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["firebird://h/shop", "firebird://h//tmp/x.fdb", "firebird:///tmp/x.fdb"])
def test_an_alias_and_an_absolute_path_are_left_alone(text):
    error = translate(ANSWERS[0], DatabaseURL.parse(text), connecting=True)
    assert isinstance(error, DatabaseUnavailable)
    assert "slash" not in str(error)


def test_other_errors_say_nothing_of_the_path():
    login = refusal("Your user name and password are not defined.", 335544472)
    error = translate(login, DatabaseURL.parse("firebird://h/tmp/x.fdb"), connecting=True)
    assert isinstance(error, AuthenticationError)
    assert "slash" not in str(error)


def test_a_host_that_does_not_exist_may_be_a_folder_of_this_machine():
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    error = translate(unknown, DatabaseURL.parse("firebird://tmp/data/x.fdb?charset=UTF8"), connecting=True)
    assert isinstance(error, DatabaseUnavailable)
    assert str(error).endswith("A file on this machine has a third slash: firebird:///tmp/data/x.fdb?charset=UTF8")
    for url, answer in [
        ("firebird://ann@tmp/x.fdb", unknown),
        ("firebird://tmp/x.fdb", ConnectionRefusedError(111, "Connection refused")),
    ]:
        assert "slash" not in str(translate(answer, DatabaseURL.parse(url), connecting=True))


def test_a_character_set_that_does_not_exist_is_a_wrong_setting():
    answer = refusal(
        "bad parameters on attach or create database\n-CHARACTER SET X is not defined", 335544325, 335544509
    )
    url = DatabaseURL.parse("firebird://h/shop?charset=X")
    assert isinstance(translate(answer, url, connecting=True), ConfigurationError)
    assert not isinstance(translate(answer, url), ConfigurationError)  # of a statement of the application's own


def test_a_full_disk_is_no_lost_connection():
    url = DatabaseURL.parse("firebird://ann:secret@h:3050//tmp/x.fdb")
    full = refusal('I/O error during "write" operation -No space left on device', 335544344, 335544737)
    lost = refusal("Error reading data from the connection.", 335544726)
    for answer, expected in ((full, False), (lost, True)):
        error = translate(answer, url)
        error.__cause__ = answer
        assert isinstance(error, DatabaseUnavailable)
        assert connection_was_lost(error) is expected


@pytest.mark.parametrize(
    ("text", "codes", "said"),
    [
        ("no room", (335544344, 335544737), "/tmp/x.fdb cannot be written (no room). Make room on its disk."),
        (
            "operating system directive fallocate failed\n-No space left on device\n"
            "-Exiting before completion due to errors",
            (335544373, 336330835),
            "/tmp/x.fdb cannot be written (operating system directive fallocate failed -No space left on device). Make "
            "room on its disk.",
        ),
    ],
)
def test_a_full_disk_is_told_with_the_remedy(text, codes, said):
    error = translate(refusal(text, *codes), DatabaseURL.parse("firebird:///tmp/x.fdb"))
    assert (type(error), str(error)) == (DatabaseUnavailable, f"firebird://{said}")


@pytest.mark.parametrize(
    ("text", "codes", "advice"),
    [
        ("no permission for CREATE access to DATABASE /x.fdb", (335544352,), "GRANT CREATE DATABASE TO USER NAME"),
        ("no permission for SELECT access to TABLE T", (335544352,), "fbtasks grant ROLE USER"),
        (
            "Unable to perform operation\n-System privilege USE_GBAK_UTILITY is missing",
            (335544788, 335545112),
            "Use the login of SYSDBA or of the owner.",
        ),
    ],
)
def test_who_may_not_do_something_is_told_who_can_allow_it(text, codes, advice):
    error = translate(refusal(text, *codes))
    assert type(error) is AuthenticationError
    assert str(error).endswith(advice)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (335544517, StatementRefused),  # an exception that a trigger raises
        (335544321, StatementRefused),  # a value that is too long
        (335544352, AuthenticationError),  # no permission
        (335544665, DuplicateKey),
        (335544336, ConflictError),  # deadlock
    ],
)
def test_refused_for_good_is_one_class(code, kind):
    error = translate(refusal("a text", code))
    assert type(error) is kind
    assert isinstance(error, StatementRefused) is (kind not in (ConflictError, DatabaseUnavailable))


@pytest.mark.parametrize("what", ["lock denied", "lock conversion denied"])
def test_a_page_that_was_not_to_be_had_is_a_conflict(what):
    """As between processes with threads on an embedded file: the number is the one for any text."""
    text = f"page 286, page type 7 {what}\n-At procedure 'FBTASKS_PRODUCER.ENQUEUE_PACKED' line: 84, col: 13"
    assert isinstance(translate(refusal(text, 335544382, 335544842)), ConflictError)
