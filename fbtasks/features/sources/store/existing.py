"""Rows that a table has already, noted as if they had just been inserted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fbtasks.errors import ConflictError
from fbtasks.features.sources.store import expressions
from fbtasks.features.sources.store.capture import Capture
from fbtasks.features.sources.store.expressions import LONGEST, Value, appended, concatenated
from fbtasks.features.sources.store.tables import quoted
from fbtasks.features.sources.store.triggers import BY, IN_ROW, INSERTION, lane, row_json
from fbtasks.firebird.session import Session

_ROOM: Final = 500
"""Room for what stands before the key."""


def note(session: Session, subscription: int, capture: Capture) -> int:
    """Notes the rows for which the condition of *capture* holds, before all changes that were noted. Returns how many.

    No row is locked. Until all are noted nothing of the subscription is given out: a change that was noted meanwhile
    is handled after the row that it changed. It is one transaction, of which nothing is left when it fails.
    """
    with session.transaction_beside() as transaction:  # not watched: it takes as long as the table is large
        while True:
            transaction.begin()
            try:
                transaction.rows(
                    "dispatch_lock", subscription, more=" "
                )  # by itself: the next statement sees what this waited for
                count = transaction.rows("note_existing", more=statement(subscription, capture))[0][0]
                transaction.commit()
            except ConflictError:
                transaction.rollback()
                continue
            return int(count)


def statement(subscription: int, capture: Capture) -> str:
    """Returns the block that notes the rows, behind its head. Its result is how many they were."""
    return "\n".join(_lines(subscription, capture))


def _lines(subscription: int, capture: Capture) -> Iterator[str]:
    pieces = _pieces(capture)
    table, when = quoted(capture.table.name), capture.when
    columns = ", ".join(f"new.{quoted(each.name)}" for each in (*capture.key, *capture.others))
    yield ""
    yield "  DECLARE QUEUE_ID BIGINT;"
    yield "  DECLARE QUEUE_LANE BIGINT = 0;"
    yield "  DECLARE QUEUE_TIME TIMESTAMP;"
    yield f"  DECLARE QUEUE_REST VARCHAR({LONGEST - _ROOM}) CHARACTER SET OCTETS;"
    yield "  DECLARE QUEUE_WIDE BLOB SUB_TYPE BINARY;"
    yield "BEGIN"
    yield "  QUEUE_COUNT = 0;"
    yield "  QUEUE_TIME = QUEUE_NOW();"
    # Behind those that an earlier call has noted and that still wait.
    yield "  SELECT COALESCE(MAX(C.ID), MAX(S.FIRST_ID) - 1) FROM QUEUE_SUBSCRIPTION S LEFT JOIN QUEUE_CHANGE C"
    yield "    ON C.SUBSCRIPTION_ID = S.ID AND C.ID < S.FIRST_ID + 1000000000"
    yield f"    WHERE S.ID = {subscription} INTO :QUEUE_ID;"
    yield f"  FOR SELECT {columns}"
    yield f"    FROM {table} new LEFT JOIN {table} old ON 1 = 0"
    if when is not None:
        yield f"    WHERE (\n{when}\n    )"
    yield "    AS CURSOR new DO"
    yield "  BEGIN"
    yield "    QUEUE_ID = QUEUE_ID + 1;"
    yield "    QUEUE_COUNT = QUEUE_COUNT + 1;"
    if capture.source.order == "key":
        yield f"    QUEUE_LANE = {lane(capture, 'new')};"
    yield from _insert(subscription, pieces)
    yield "  END"
    yield "  UPDATE QUEUE_DISPATCH D SET MARK_ID = 0, BACK_ID = 0, BACK_TX = NULL, ELDERS = ''"
    yield f"    WHERE D.SUBSCRIPTION_ID = {subscription};"
    yield "  SELECT 'fbtasks:queue:' || S.QUEUE FROM QUEUE_SUBSCRIPTION S"
    yield f"    WHERE S.ID = {subscription} INTO :QUEUE_REST;"
    yield "  POST_EVENT QUEUE_REST;"
    yield "  SUSPEND;"
    yield "END"


def _pieces(capture: Capture) -> list[str | Value]:
    """The members of an insert, behind its id."""
    found: list[str | Value] = [',"o":"I', *BY, ',"k":', *row_json(capture, capture.key, "new")]
    if capture.others:
        found += [',"n":', *row_json(capture, capture.others, "new")]
    return [*found, "}"]


def _insert(subscription: int, pieces: list[str | Value]) -> Iterator[str]:
    start = "_OCTETS '{\"i\":' || :QUEUE_ID"
    yield "    QUEUE_WIDE = NULL;"
    rest = f"QUEUE_REST = {concatenated(pieces)};"
    if expressions.most(pieces) > LONGEST - _ROOM:
        yield f"    IF ({expressions.size(pieces)} > {LONGEST - _ROOM}) THEN"
        yield f"      QUEUE_WIDE = {appended(pieces)};"
        yield "    ELSE"
        yield f"      {rest}"
    else:
        yield f"    {rest}"
    yield f"    IF (QUEUE_WIDE IS NULL AND OCTET_LENGTH(QUEUE_REST) > {IN_ROW - 40}) THEN"
    yield "      QUEUE_WIDE = QUEUE_REST;"
    yield "    IF (QUEUE_WIDE IS NULL) THEN"
    yield "      " + _insertion(subscription, "DATA", f"{start} || :QUEUE_REST")
    yield "    ELSE"
    yield "      " + _insertion(subscription, "LARGE", f"BLOB_APPEND(NULL, {start}, :QUEUE_WIDE)")


def _insertion(subscription: int, column: str, members: str) -> str:
    return INSERTION.format(column=column, number=subscription, lane=":QUEUE_LANE", members=members)
