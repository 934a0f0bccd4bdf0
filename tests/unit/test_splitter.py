"""Where a script is cut into statements."""

import pytest

from fbtasks.cli.sql.splitter import statements

BLOCK = "EXECUTE BLOCK RETURNS (A INT) AS\nDECLARE X INT = 1;\nBEGIN\n  A = X;\n  SUSPEND;\nEND"
CASES = (
    "CREATE OR ALTER PROCEDURE P (A INT) AS BEGIN A = CASE WHEN A = 1 THEN 2 ELSE 3 END; IF (A = 1) THEN BEGIN END END"
)
INNER = "CREATE PROCEDURE P AS DECLARE PROCEDURE Q AS BEGIN POST_EVENT ';'; END\nDECLARE X INT;\nBEGIN X = 1; END"
PACKAGE = "CREATE PACKAGE BODY K AS BEGIN PROCEDURE A AS BEGIN X = 1; END PROCEDURE B AS BEGIN END END"
OUTSIDE = "CREATE FUNCTION F (A INT) RETURNS INT EXTERNAL NAME 'm!f' ENGINE UDR"
TRIGGER = "CREATE TRIGGER T FOR X BEFORE INSERT AS BEGIN NEW.END_AT = 1; END"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT 1; SELECT 2;\n", ["SELECT 1", "SELECT 2"]),
        ("SELECT\n1\n;\n", ["SELECT\n1"]),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT ';' , \"a;b\", 'it''s; ' FROM T;", ["SELECT ';' , \"a;b\", 'it''s; ' FROM T"]),
        ("SELECT 'two\nlines;' FROM T;", ["SELECT 'two\nlines;' FROM T"]),
        ("SELECT q'{it's; }' , Q'!a'b;!' FROM T;", ["SELECT q'{it's; }' , Q'!a'b;!' FROM T"]),
        ("SELECT 1 -- one; two\n, 2;", ["SELECT 1 -- one; two\n, 2"]),
        ("SELECT 1 /* one;\n'two */ , 2;", ["SELECT 1 /* one;\n'two */ , 2"]),
        ("-- nothing;\n/* neither; */\n;;\n", []),
        ("-- first\nSELECT 1;", ["SELECT 1"]),
        ("SELECT 'open;\n", ["SELECT 'open;"]),
        ("SELECT 4 - -1, 2 / 1;", ["SELECT 4 - -1, 2 / 1"]),
        *((f"{body};\nSELECT 1;", [body, "SELECT 1"]) for body in (BLOCK, CASES, INNER, PACKAGE, TRIGGER)),
        *((f"{body.lower()};", [body.lower()]) for body in (BLOCK, CASES, INNER, PACKAGE, TRIGGER)),
        (f"{BLOCK} -- done\n;", [f"{BLOCK} -- done"]),
        (f"{OUTSIDE};SELECT 1;", [OUTSIDE, "SELECT 1"]),
        ("ALTER TRIGGER T INACTIVE;SELECT 1;", ["ALTER TRIGGER T INACTIVE", "SELECT 1"]),
        ("SELECT CASE A WHEN 1 THEN 2 END;SELECT 1;", ["SELECT CASE A WHEN 1 THEN 2 END", "SELECT 1"]),
        ("ALTER DATABASE BEGIN BACKUP;SELECT 1;", ["ALTER DATABASE BEGIN BACKUP", "SELECT 1"]),
        ("SET TERM ^ ;\nSELECT 1; SELECT 2^\nSET TERM ; ^\nSELECT 3;", ["SELECT 1; SELECT 2", "SELECT 3"]),
        (f"set term !!;\n{BLOCK}!! set term ;!! SELECT 3;", [BLOCK, "SELECT 3"]),
    ],
)  # fmt: skip
def test_statements_are_cut_where_they_end(text, wanted):
    assert list(statements(text)) == wanted


def test_a_comment_before_set_term_is_none_of_it():
    assert list(statements("-- from now on\nSET TERM ^ ;\nSELECT 1; SELECT 2^ -- the last\n")) == ["SELECT 1; SELECT 2"]


def test_a_long_statement_is_read_once():
    """Ten thousand lines of one statement: reading each line again from the beginning would take minutes."""
    assert len(list(statements("  OR NAME = 'a;b' -- ;\n" * 10_000 + ";"))) == 1
