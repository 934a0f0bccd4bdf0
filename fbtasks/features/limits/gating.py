"""Claims of tasks that have limits, and were enqueued without them: by SQL, by their names, or by an older program."""

from __future__ import annotations

from fbtasks.app import FBTasks
from fbtasks.errors import FBTasksError
from fbtasks.features.limits import Limits
from fbtasks.features.limits.gates import Gates
from fbtasks.queue.codec import pack_gates
from fbtasks.run.inputs import given_by
from fbtasks.tasks.call import Claim, Failed, Outcome, PutBefore
from fbtasks.tasks.serialize import Payload


class Gating:
    """Puts such tasks before the gates that they have to pass."""

    def __init__(self, app: FBTasks) -> None:
        self._app = app
        self._feature: Limits = app.features["limits"]
        self._gates = self._feature.gates if app.tasks else {}

    @property
    def has_any(self) -> bool:
        """Whether any task has limits."""
        return bool(self._gates)

    def passes(self, claim: Claim) -> bool:
        """Whether *claim* has passed what its task has to.

        A step of a workflow is not merged into another task: others may wait for its end, and it has inputs of its own.
        """
        gates = self._gates.get(claim.name)
        return claim.gated or gates is None or ((claim.wanted or claim.fed) and gates.merges_only)

    def outcome(self, claim: Claim) -> Outcome:
        """What becomes of a claim that has not. Its payload is there, and what it is given as a step of a workflow."""
        try:
            return PutBefore(self._packed(self._gates[claim.name], claim))
        except FBTasksError as error:  # its payload is no call, or has no key
            kind = type(error)
            return Failed(f"{kind.__module__}.{kind.__qualname__}", str(error))

    def _packed(self, gates: Gates, claim: Claim) -> str:
        payload = Payload(claim.content_type, claim.payload or b"")
        args, kwargs = self._app.serializer.load_call(payload, task=claim.name)
        found = gates.of([*given_by(claim.inputs, self._app.serializer), *args], kwargs, claim.queue)
        if claim.wanted or claim.inputs:
            found = tuple(gate for gate in found if gate.on_duplicate is None)
        limits = {gate.limit: self._feature.known.note(gate.limit, claim.queue) for gate in found}
        return pack_gates(found, limits).decode("ascii")
