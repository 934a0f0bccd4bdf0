"""No statement takes local time for UTC: a cast of AT TIME ZONE 'UTC' to TIMESTAMP gives the session's local time."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAST = re.compile(r"CAST\s*\(\s*[^;]*?AT\s+TIME\s+ZONE[^;]*?AS\s+(TIMESTAMP|DATE|TIME)\s*\)", re.IGNORECASE)
LOCAL = re.compile(
    r"\b(LOCALTIMESTAMP|LOCALTIME|CURRENT_DATE|CURRENT_TIME)\b|CAST\s*\(\s*'(NOW|TODAY)'\s+AS\s+(TIMESTAMP|DATE|TIME)\s*\)"
)


def sql_of(path):
    """The text of a file without the comments of SQL."""
    return re.sub(r"--.*", "", path.read_text("utf-8"))


@pytest.mark.parametrize("folder", ["fbtasks", "fbtasks_scheme", "benchmarks", "examples"])
def test_no_statement_takes_local_time_for_utc(folder):
    files = [path for end in ("*.sql", "*.py") for path in (ROOT / folder).rglob(end)]
    assert files
    found = []
    for path in files:
        sql = sql_of(path)
        found += [f"{path}: {match[0]}" for form in (CAST, LOCAL) for match in form.finditer(sql)]
    assert found == []


def test_the_clock_is_read_where_its_zone_is_kept():
    """Elsewhere QUEUE_NOW() is asked."""
    places = [
        line.strip()
        for path in sorted((ROOT / "fbtasks").rglob("*.sql"))
        for line in sql_of(path).splitlines()
        if re.search(r"CURRENT_TIMESTAMP|'NOW'", line)
    ]
    assert places == [
        "RETURN US(QUEUE_UTC(CAST('NOW' AS TIMESTAMP WITH TIME ZONE)));",
        "RETURN DATEADD(DATEDIFF(MILLISECOND FROM TIMESTAMP '2000-01-01 00:00:00 +00:00' TO CURRENT_TIMESTAMP)",
        "VALUES (?, ?, CURRENT_TIMESTAMP)",  # QUEUE_SCHEMA is there before QUEUE_NOW()
    ]
