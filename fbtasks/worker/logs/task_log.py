"""Logs what became of tasks."""

from __future__ import annotations

import logging
import re
from typing import Final

from fbtasks.system.showing import kind_of, shorten
from fbtasks.tasks.call import (
    Cancelled,
    Claim,
    Crashed,
    Failed,
    FeatureOutcome,
    Finished,
    Reason,
    Requeue,
    Succeeded,
    crashes,
    is_last_crash,
)
from fbtasks.tasks.serialize import Payload, json_value
from fbtasks.worker.logs import visible

logger = logging.getLogger("fbtasks.worker")

LONGEST_LINE: Final = 500
"""Characters that the log has of an error's message; the middle of a longer one is left out."""
LONGEST_TRACE: Final = 6_000
"""Characters that the log has of a traceback. The whole is in the database."""
_TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-.*")
"""The header ``traceparent`` (https://www.w3.org/TR/trace-context/), with the id of the trace."""
_HEADERS: Final = 16_384
"""Bytes at the end of a payload in which that is looked for: headers come last."""


def log_stale(finished: Finished, stands: int) -> None:
    """Says that an outcome was dropped; *stands* is the claim that the task has now, 0 when it has none."""
    claim, what = finished.claim, ""
    match finished.outcome:  # no other line says so
        case Crashed(message):
            what = f" It was that {message}."
        case Failed(error_type, message):
            what = f" It was {kind_of(error_type)}: {one_line(message)}"
    if stands:
        logger.warning(
            "The outcome of task %s came too late and was dropped: its claim is %d now, not %d.%s",
            claim.label,
            stands,
            claim.claim_id,
            what,
        )
    else:
        logger.warning(
            "The outcome of task %s was dropped: claim %d has ended, by an outcome recorded before or a rescue.%s",
            claim.label,
            claim.claim_id,
            what,
        )


def log_outcome(finished: Finished) -> None:
    """Says what became of a task."""
    claim, elapsed = finished.claim, finished.elapsed
    match finished.outcome:
        case Succeeded():
            _say(logging.INFO, claim, "succeeded in %.3f s.", elapsed)
        case Failed(error_type, message, trace):
            error = f"{kind_of(error_type)}: {one_line(message)}"
            _say(logging.ERROR, claim, "failed in %.3f s: %s", elapsed, error, trace=trace)
        case Requeue(Reason.RETRY, delay, message):
            _say(logging.WARNING, claim, "is tried again in %.1f s after: %s", delay, one_line(message))
        case Requeue(Reason.SNOOZE, delay):
            _say(logging.INFO, claim, "is run again in %.1f s, as it asked.", delay)
        case Cancelled(message):
            _say(logging.INFO, claim, "was cancelled: %s", message)
        case Crashed(message, charged, limit) as crashed:
            times = f"crash {crashes(claim, crashed)} of {limit}" if charged else "not charged"
            word = "failed: it crashed" if is_last_crash(claim, crashed) else "crashed"
            _say(logging.ERROR, claim, f"{word} (%s): %s", times, message)
        case Requeue(Reason.CONTINUE):
            _say(
                logging.INFO, claim, "has done some of its changes in %.3f s; the others follow in their turn.", elapsed
            )
        case FeatureOutcome() as own:
            _say(logging.INFO, claim, "%s after %.3f s.", own.text(), elapsed)
        case Requeue(Reason.RELEASE):
            _say(logging.INFO, claim, "was given back.")
        case Requeue(Reason.CLOSED, delay):
            _say(logging.INFO, claim, "is put off for %.0f s, until its task's window opens.", delay)


def _say(level: int, claim: Claim, text: str, *arguments: object, trace: str = "") -> None:
    if not logger.isEnabledFor(level):
        return
    name = claim.name if claim.task_id is None else f"{claim.name}, {claim.task_id}"
    arguments = (claim.id, name, *arguments)
    record = logger.makeRecord(logger.name, level, __file__, 0, f"Task %d (%s) {text}", arguments, None)
    task_id = claim.task_id or str(claim.id)
    record.__dict__ |= {"task_id": task_id, "task_name": claim.name, "task_try": claim.try_count + 1}
    if (trace_id := _trace_of(claim)) is not None:
        record.__dict__["trace_id"] = trace_id
    record.exc_text = shorten(trace.rstrip(), LONGEST_TRACE, "\n  ... (cut here) ...\n") or None
    logger.handle(record)


def _trace_of(claim: Claim) -> str | None:
    """The id of the trace in the headers of a call, which are read where it is in JSON and may have them."""
    if claim.payload is None or claim.payload.rfind(b'"traceparent"', -_HEADERS) < 0:
        return None
    match json_value(Payload(claim.content_type, claim.payload)):
        case [_, _, {"traceparent": str(header)}] if found := _TRACE.fullmatch(header):
            return found[1]
    return None


def one_line(text: str) -> str:
    """*text*, which a task's exception chose, as one line without control characters."""
    return visible(shorten(text, LONGEST_LINE, " ... "), " ")
