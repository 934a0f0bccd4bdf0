"""What Python names is there: the queries of queries.sql, and procedures, which are given what they take."""

import ast
import re

import pytest
from support.trees import nodes, trees

from fbtasks.database.packages import Routine, calls, packages, queries
from fbtasks.database.schema import named_queries, ours

NAME = re.compile(r"FBTASKS_[A-Z_]+\.[A-Z_]+")
RUN = ("call", "execute", "packed", "parts", "read", "read_in_parts", "rows", "value")
ONLY_CALLS = re.compile(r"(?:SELECT (?!.*CURRENT_)[\w\s,]+ FROM|EXECUTE PROCEDURE)\s+FBTASKS_\w+\.\w+(?:\([?,\s]*\))?")


def texts_of(tree):
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def calls_in(tree):
    """Each procedure that is called by its name, the arguments behind that, and the name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for at, given in enumerate(node.args):
                if isinstance(given, ast.Constant) and isinstance(given.value, str) and NAME.fullmatch(given.value):
                    yield given.value, node.args[at + 1 :], getattr(node.func, "attr", "")


def test_every_procedure_that_is_named_is_there_and_given_what_it_takes():
    """Of those that are given some values with a star, only that these are not too many."""
    takes = {f"{package}.{each.name}": len(each.parameters) for package, of in packages().items() for each in of}
    wrong, count = [], 0
    for tree in trees().values():
        found = list(calls_in(tree))
        count += len(found)
        wrong += {name for name in texts_of(tree) if NAME.fullmatch(name)} - {name for name, _, _ in found}
        for name, given, by in found:
            fixed = [each for each in given if not isinstance(each, ast.Starred)]
            known = name in calls()
            if by == "packed":
                fits = len(given) == 1
            else:
                fits = len(fixed) <= takes.get(name, 0) if fixed != given else len(fixed) == takes.get(name)
            if not (known and fits):
                wrong.append(name)
    assert wrong == []
    assert count > 100


def test_every_query_that_is_named_is_there_and_every_query_is_named():
    named = {
        node.args[0].value
        for _, node in nodes(ast.Call)
        if isinstance(node.func, ast.Attribute) and node.func.attr in RUN
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }
    known = named_queries(0).keys()
    assert {name for name in named - known if re.fullmatch("[a-z_]+", name)} <= {"rb", "ascii", "utf-8"}
    of_features = {f"unfinished_{part.name}" for part in ours()}  # named as the features are that the database has
    assert known - of_features - set().union(*map(texts_of, trees().values())) == set()


def test_no_query_is_but_the_call_of_a_procedure():
    assert [
        name for name, sql in named_queries(0).items() if ONLY_CALLS.fullmatch(re.sub("--.*", "", sql).strip())
    ] == []


def test_a_call_gives_all_parameters_and_selects_where_there_may_be_no_row_or_several():
    takes = "A BIGINT, B VARCHAR(10) CHARACTER SET ASCII = 'a', C NUMERIC(18, 2) = NULL"
    head = f"PROCEDURE P (\n    {takes})\nRETURNS (D BIGINT, E INTEGER)"
    loop = "BEGIN\n    FOR SELECT 1 FROM RDB$DATABASE INTO D DO\n"
    for body, selects in {
        "BEGIN D = 1; END": False,
        "BEGIN\n    IF (A = 1) THEN\n    BEGIN\n        D = 1;\n    END\n    -- SUSPEND\n    SUSPEND;\nEND": False,
        "BEGIN\n    IF (A = 1) THEN\n        EXIT;\n    SUSPEND;\nEND": True,
        f"{loop}        SUSPEND;\nEND": True,
        f"{loop}    BEGIN\n        D = 2;\n        SUSPEND;\n    END\nEND": True,
        "BEGIN\n    SUSPEND;\n    D = 2;\nEND": True,
    }.items():
        routine = Routine("PROCEDURE", "P", head, body, private=False)
        call = "SELECT D, E FROM X.P(?, ?, ?)" if selects else "EXECUTE PROCEDURE X.P(?, ?, ?)"
        assert routine.call("X") == call, body
    assert Routine("PROCEDURE", "P", "PROCEDURE P", "BEGIN END", private=False).call("X") == "EXECUTE PROCEDURE X.P"


def test_calls_name_the_packages_of_a_generation():
    assert queries(12)["FBTASKS_QUEUES.SET_PLACES"] == "EXECUTE PROCEDURE FBTASKS_QUEUES_12.SET_PLACES(?)"
    with pytest.raises(KeyError):
        queries(12)["FBTASKS_QUEUES.NOT_THERE"]
