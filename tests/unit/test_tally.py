"""What a worker's last line says of what it has claimed."""

import pytest

from fbtasks.features.sources.runs import Rest
from fbtasks.tasks.call import RELEASED, Cancelled, Claim, Crashed, Failed, Finished, Reason, Requeue, Succeeded
from fbtasks.worker.outcomes import Tally

NOTHING = "0 succeeded, 0 failed, 0 retried, 0 given back"


def counted(*outcomes, crashes=0):
    tally = Tally()
    tally.take(Finished(Claim(1, 2, "t", crash_count=crashes), outcome) for outcome in outcomes)
    return str(tally)


def test_each_claim_is_counted_once():
    assert counted() == NOTHING
    ends = (
        Succeeded(), Failed("E", ""), Requeue(Reason.RETRY, 1.0, ""), RELEASED,
        Requeue(Reason.CONTINUE, extra=Rest()), Cancelled(""),
        Requeue(Reason.CLOSED, 1.0), Requeue(Reason.PARKED), Crashed("died", charged=True),
    )  # fmt: skip
    said = counted(*ends)
    assert said == (
        "1 succeeded, 1 failed, 1 retried, 1 given back, 1 continued, 1 cancelled, 1 crashed, 1 put off, 1 parked"
    )
    assert sum(int(part.split()[0]) for part in said.split(", ")) == len(ends)


@pytest.mark.parametrize(
    ("outcome", "fails"),
    [
        (Crashed("died", charged=True, limit=3), True),
        (Crashed("died", charged=True, limit=4), False),
        (Crashed("died", charged=False, limit=1), False),
        (Crashed("died", charged=True, limit=3, extra=Rest(b"", tries=0)), False),  # the first of another change
        (Crashed("died", charged=True, limit=1, extra=Rest(b"", tries=0)), True),
        (Crashed("died", charged=True, limit=3, extra=Rest(None, b"")), True),
    ],
)
def test_the_crash_that_fails_its_task_is_a_failure(outcome, fails):
    expected = NOTHING.replace("0 failed", "1 failed") if fails else f"{NOTHING}, 1 crashed"
    assert counted(outcome, crashes=2) == expected
