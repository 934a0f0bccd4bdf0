"""Ledgers that are written by hand, for the tests of the account."""


class Story:
    """A ledger written by hand; times are those that the steps give."""

    def __init__(self):
        self.records = []

    def add(self, t, event, **fields):
        self.records.append({"t": t, "pid": 1, "event": event, **fields})
        return self

    def enqueued(self, ref="a", id="1", kind="quick", t=0.0):
        return self.add(t, "attempt", ref=ref, kind=kind, how="single").add(t + 0.1, "ack", ref=ref, id=id)

    def ran(self, start, end=None, ref="a", id="1", kind="quick", pid=11, worker=10, tries=0, outcome="returned"):
        run = f"{pid}.{len(self.records)}"
        self.add(start, "start", ref=ref, run=run, kind=kind, pid=pid, worker=worker, id=id, tries=tries)
        self.records[-1]["pid"] = pid
        if end is not None:
            self.add(end, "end", ref=ref, run=run, outcome=outcome)
        return self

    def called(self, handler, ref, start, end=None, **given):
        """A call of *handler* for something that a source has."""
        return self.ran(start, end, ref=ref, kind=handler, **given)

    def fault(self, t, what="SIGKILL", target=10, until=None):
        return self.add(t, "fault", what=what, target=target, until=until)

    def operator(self, t, what, answer, id="1", number=1):
        self.add(t, "operator", number=number, what=what, id=id)
        return self.add(t + 0.1, "answer", number=number, what=what, id=id, answer=answer)
