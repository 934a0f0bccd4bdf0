"""Where what is typed is cut into statements."""

import pytest

from fbtasks.cli.sql.splitter import Splitter


def split(text):
    splitter = Splitter()
    found = [statement for line in text.splitlines(keepends=True) for statement in splitter.feed(line)]
    return found, splitter.rest()


BLOCK = "EXECUTE BLOCK RETURNS (A INT) AS\nDECLARE X INT = 1;\nBEGIN\n  A = X;\n  SUSPEND;\nEND"
CASES = (
    "CREATE OR ALTER PROCEDURE P (A INT) AS BEGIN A = CASE WHEN A = 1 THEN 2 ELSE 3 END; IF (A = 1) THEN BEGIN END END"
)
INNER = "CREATE PROCEDURE P AS DECLARE PROCEDURE Q AS BEGIN POST_EVENT ';'; END\nDECLARE X INT;\nBEGIN X = 1; END"
PACKAGE = "CREATE PACKAGE BODY K AS BEGIN PROCEDURE A AS BEGIN X = 1; END PROCEDURE B AS BEGIN END END"
OUTSIDE = "CREATE FUNCTION F (A INT) RETURNS INT EXTERNAL NAME 'm!f' ENGINE UDR"
TRIGGER = "CREATE TRIGGER T FOR X BEFORE INSERT AS BEGIN NEW.END_AT = 1; END"


@pytest.mark.parametrize(
    ("text", "wanted", "rest"),
    [
        ("SELECT 1; SELECT 2;\n", ["SELECT 1", "SELECT 2"], None),
        ("SELECT\n1\n;\n", ["SELECT\n1"], None),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT ';' , \"a;b\", 'it''s; ' FROM T;", ["SELECT ';' , \"a;b\", 'it''s; ' FROM T"], None),
        ("SELECT 'two\nlines;' FROM T;", ["SELECT 'two\nlines;' FROM T"], None),
        ("SELECT q'{it's; }' , Q'!a'b;!' FROM T;", ["SELECT q'{it's; }' , Q'!a'b;!' FROM T"], None),
        ("SELECT 1 -- one; two\n, 2;", ["SELECT 1 -- one; two\n, 2"], None),
        ("SELECT 1 /* one;\n'two */ , 2;", ["SELECT 1 /* one;\n'two */ , 2"], None),
        ("-- nothing;\n/* neither; */\n;;\n", [], None),
        ("-- first\nSELECT 1;", ["SELECT 1"], None),
        ("SELECT 'open;\n", [], "SELECT 'open;"),
        ("SELECT 4 - -1, 2 / 1;", ["SELECT 4 - -1, 2 / 1"], None),
        *((f"{body};\nSELECT 1;", [body, "SELECT 1"], None) for body in (BLOCK, CASES, INNER, PACKAGE, TRIGGER)),
        *((f"{body.lower()};", [body.lower()], None) for body in (BLOCK, CASES, INNER, PACKAGE, TRIGGER)),
        (f"{BLOCK} -- done\n;", [f"{BLOCK} -- done"], None),
        (f"{OUTSIDE};SELECT 1;", [OUTSIDE, "SELECT 1"], None),
        ("ALTER TRIGGER T INACTIVE;SELECT 1;", ["ALTER TRIGGER T INACTIVE", "SELECT 1"], None),
        ("SELECT CASE A WHEN 1 THEN 2 END;SELECT 1;", ["SELECT CASE A WHEN 1 THEN 2 END", "SELECT 1"], None),
        ("ALTER DATABASE BEGIN BACKUP;SELECT 1;", ["ALTER DATABASE BEGIN BACKUP", "SELECT 1"], None),
        ("SET TERM ^ ;\nSELECT 1; SELECT 2^\nSET TERM ; ^\nSELECT 3;", ["SELECT 1; SELECT 2", "SELECT 3"], None),
        (f"set term !!;\n{BLOCK}!! set term ;!! SELECT 3;", [BLOCK, "SELECT 3"], None),
    ],
)  # fmt: skip
def test_statements_are_cut_where_they_end(text, wanted, rest):
    assert split(text) == (wanted, rest)


def test_what_has_begun_is_known_and_can_be_dropped():
    splitter = Splitter()
    assert splitter.feed("SELECT 1;") == ["SELECT 1"]
    assert not splitter.pending
    for begun in ("SELECT", "/* what", "'", "EXECUTE BLOCK AS BEGIN X = 1;"):
        assert splitter.feed(begun) == []
        assert splitter.pending
        splitter.clear()
        assert not splitter.pending
    assert splitter.feed("SELECT 2;") == ["SELECT 2"]


def test_a_long_statement_is_read_once():
    """Ten thousand lines of one statement: reading each line again from the beginning would take minutes."""
    splitter = Splitter()
    for _ in range(10_000):
        assert splitter.feed("  OR NAME = 'a;b' -- ;\n") == []
    assert len(splitter.feed(";")) == 1
