"""What a dashboard asks costs the same however much there is: counted in pages that the engine fetches."""

import os
from datetime import UTC, datetime, timedelta

import pytest
from support.sql import execute, fetches_of
from support.variants import slow

from fbtasks.features.web import search, store
from fbtasks.features.web.showing import REDACTED, Arguments

FEW = 1_000
PART = 50_000
"""Rows of one transaction."""
GROWS = 1.5
SLACK = 60
"""An index with a level more has each look into it fetch one page more."""
ENDED = """
    EXECUTE BLOCK AS DECLARE N INTEGER = {first}; BEGIN
        WHILE (N < {last}) DO BEGIN
            INSERT INTO QUEUE_HISTORY (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, FINISH_TIME,
                    TRY_COUNT, CRASH_COUNT, WORKER, ERROR_TYPE, ERROR_MSG, CONTENT_TYPE, PAYLOAD)
                VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 'task' || MOD(:N, 7), 'q' || MOD(:N, 3), 10 + MOD(:N, 3), 0,
                    QUEUE_NOW(), QUEUE_NOW(), DATEADD(:N / 20 SECOND TO TIMESTAMP '2026-01-01'), 1, 0, 'w',
                    'builtins.ValueError', 'no order ' || :N, 'application/json', '[[' || :N || '],{{}}]');
            N = N + 1;
        END END"""
WAITING = """
    EXECUTE BLOCK AS DECLARE N INTEGER = {first}; BEGIN
        WHILE (N < {last}) DO BEGIN
            INSERT INTO QUEUE_TASK (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, CONTENT_TYPE,
                    PAYLOAD)
                VALUES (NEXT VALUE FOR QUEUE_TASK_SEQ, 'task' || MOD(:N, 7), 'q' || MOD(:N, 3), MOD(:N / 2, 2),
                    MOD(:N, 2), QUEUE_NOW(), DATEADD(:N SECOND TO TIMESTAMP '2026-01-01'), 'application/json',
                    '[[' || :N || '],{{}}]');
            N = N + 1;
        END END"""
_COUNTERS = [f"{kind}_{n}" for kind in ("RUN", "WAIT") for n in range(12)]
PAST = f"""
    EXECUTE BLOCK AS DECLARE N INTEGER = {{first}}; DECLARE AT_TIME TIMESTAMP; DECLARE SPAN INTEGER; BEGIN
        WHILE (N < {{last}}) DO BEGIN
            SPAN = IIF(N < 1000, 10, DECODE(MOD(N, 3), 0, 60, 1, 600, 3600));
            AT_TIME = DATEADD(-IIF(N < 1000, MOD(N, 60), 300 + N) MINUTE TO QUEUE_NOW());
            INSERT INTO QUEUE_MINUTE (SPAN, AT_TIME, QUEUE, NAME, NAME_HASH, WRITER, SUCCEEDED, FAILED, CANCELLED,
                    RETRIED, ELAPSED_MS, WAITED_MS, {", ".join(_COUNTERS)})
                VALUES (:SPAN, :AT_TIME, IIF(MOD(:N, 9) = 0, '', 'q' || MOD(:N, 3)),
                    IIF(MOD(:N, 3) = 0, '', 'task' || MOD(:N, 7)),
                    CRYPT_HASH(IIF(MOD(:N, 3) = 0, '', 'task' || MOD(:N, 7)) USING SHA256), :N,
                    {", ".join(["1"] * (6 + len(_COUNTERS)))});
            INSERT INTO QUEUE_DEPTH (SPAN, AT_TIME, QUEUE, WRITER, READY, SCHEDULED, HELD, RUNNING, BUSY, SLOTS)
                VALUES (MAXVALUE(60, :SPAN), :AT_TIME, IIF(MOD(:N, 2) = 0, '', 'q1'), :N, 1, 1, 1, 1, 1, 1);
            INSERT INTO QUEUE_VERSION (QUEUE, AT_TIME, WRITER, VERSIONS)
                VALUES (IIF(MOD(:N, 2) = 0, '', 'q1'), :AT_TIME, :N, :N);
            N = N + 1;
        END END"""
"""A thousand rows of the last hour; those that follow are of the time before."""
LINES = (
    "", "state:failed", "state:succeeded,cancelled queue:q1", "name:task3", "name:none*", "error:nothing", "order 999",
    "arg.0:none", "state:failed until:2026-01-01T00:00:20", "state:ready", "state:ready queue:q1 name:task3",
    "state:waiting name:none", "state:scheduled", "state:scheduled name:none", "why:unserved", "why:limit",
    "why:paused queue:q2", "id:17",
)  # fmt: skip
AT = 10_000 * int(datetime(2026, 1, 1, 0, 0, 20, tzinfo=UTC).timestamp())
DEEP = {"": (AT, 0), "state:failed": (AT, 0), "state:ready": (0, AT, 0), "state:scheduled": (AT, 0)}
"""Cursors of pages that are far from the first."""


def asked(app, session):
    """What is asked, by names."""
    shown = Arguments(app, REDACTED, hidden=False)
    for line in LINES:
        yield line, lambda line=line: search.page(app.database, session, search.parse(line), shown)
    for line, key in DEEP.items():
        cursor = ".".join(map(str, key))
        yield (
            f"{line} from {cursor}",
            lambda line=line, at=cursor: search.page(app.database, session, search.parse(line), shown, at),
        )
    now = datetime.now(UTC)
    yield "failure groups", lambda: store.failure_groups(session, shown.told, 100)
    yield "those of a name", lambda: store.failure_groups(session, shown.told, 100, name="task1")
    yield (
        "ids of a group",
        lambda: store.group_ids(session, shown.told, store.failure_groups(session, shown.told, 1).rows[0].key, 50),
    )
    yield "tries", lambda: store.tries(session, 1)
    yield "a series", lambda: store.series(session, now - timedelta(hours=1), now, 60)
    yield "a series of a queue", lambda: store.series(session, now - timedelta(hours=1), now, 60, queue="q1")
    yield "sparklines", lambda: store.sparks(session)
    yield "backlog", lambda: store.backlog(session, now - timedelta(hours=1), now)
    yield "versions", lambda: store.versions(session)
    yield "names", lambda: store.names(session, now - timedelta(hours=1), now)
    yield "the audit", lambda: store.audit(session)


@pytest.mark.thorough
@pytest.mark.embedded("a server reads the same pages")
@pytest.mark.parametrize("many", [50_000, slow(1_000_000)])
def test_what_is_asked_costs_the_same_with_many_tasks(app, session, monkeypatch, many):
    monkeypatch.setattr(search, "LOOKS", 150)
    monkeypatch.setattr(search, "READS", 60)
    monkeypatch.setattr(store, "LOOKED_THROUGH", 200)
    counts = []
    for first, last in ((0, FEW), (FEW, many)):
        for at in range(first, last, PART):
            part = {"first": at, "last": min(at + PART, last)}
            execute(app, ENDED.format(**part))
            execute(app, WAITING.format(**part))
            execute(app, PAST.format(**part))
        counts.append(fetches_of(session, asked(app, session)))
    before, after = counts
    if os.environ.get("FBTASKS_SLOW"):
        print(*(f"{what:60} {before[what]:7} {after[what]:7}" for what in before), sep="\n")
    assert {what: (before[what], n) for what, n in after.items() if n > GROWS * before[what] + SLACK} == {}
