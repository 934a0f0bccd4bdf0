"""Claims of tasks that have limits, and were enqueued without them: by SQL, by their names, or by an older program."""

from __future__ import annotations

from fbtasks.app import FBTasks
from fbtasks.call import Claim, Failed, Outcome, PutBefore
from fbtasks.errors import FBTasksError
from fbtasks.gates import Gates
from fbtasks.serialize import Payload
from fbtasks.store.codec import pack_gates


class Gating:
    """Puts such tasks before the gates that they have to pass."""

    def __init__(self, app: FBTasks) -> None:
        self._app = app
        self._gates = {name: task.gates for name, task in app.tasks.items() if task.gates is not None}

    @property
    def has_any(self) -> bool:
        """Whether any task has limits."""
        return bool(self._gates)

    def passes(self, claim: Claim) -> bool:
        """Whether *claim* has passed what its task has to.

        A step of a workflow that is given results has, whatever its program knew of limits: its key may be one of them.
        """
        return claim.gated or claim.fed or claim.name not in self._gates

    def outcome(self, claim: Claim) -> Outcome:
        """What becomes of a claim that has not. Its payload is there."""
        try:
            return PutBefore(self._packed(self._gates[claim.name], claim))
        except FBTasksError as error:  # its payload is no call, or has no key
            kind = type(error)
            return Failed(f"{kind.__module__}.{kind.__qualname__}", str(error))

    def _packed(self, gates: Gates, claim: Claim) -> str:
        payload = Payload(claim.content_type, claim.payload or b"")
        found = gates.of(*self._app.serializer.load_call(payload, task=claim.name), claim.queue)
        limits = {gate.limit: self._app.enqueuer.limits.note(gate.limit, claim.queue) for gate in found}
        return pack_gates(found, limits).decode("ascii")
