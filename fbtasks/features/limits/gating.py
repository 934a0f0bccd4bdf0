"""Claims of tasks that have limits, and were enqueued without them: by SQL, by their names, or by an older program."""

from __future__ import annotations

from fbtasks.errors import FBTasksError
from fbtasks.features.limits import Limits
from fbtasks.features.limits.gates import Gates
from fbtasks.firebird.session import Session
from fbtasks.queue.codec import pack_gates
from fbtasks.queue.tasks import with_payload
from fbtasks.run.inputs import given_by
from fbtasks.tasks.call import Claim, Failed, Outcome, Reason, Requeue
from fbtasks.tasks.serialize import Payload


def passes(gates: Gates, claim: Claim) -> bool:
    """Returns whether *claim* has passed what its task has to.

    A step of a workflow is not merged into another task: others may wait for its end, and it has inputs of its own.
    """
    return claim.gated or ((claim.wanted or bool(claim.inputs)) and gates.merges_only)


def gated(feature: Limits, session: Session, claim: Claim) -> Claim | Outcome:
    """Puts *claim* before the gates that it has to pass, and has not. What it is given as a step is there already."""
    gates = feature.gates.get(claim.name)
    if gates is None or passes(gates, claim):
        return claim
    claim = with_payload(session, claim)
    try:
        return Requeue(Reason.HELD, message=_packed(feature, gates, claim))
    except FBTasksError as error:  # its payload is no call, or has no key
        kind = type(error)
        return Failed(f"{kind.__module__}.{kind.__qualname__}", str(error))


def _packed(feature: Limits, gates: Gates, claim: Claim) -> str:
    serializer = feature.app.serializer
    args, kwargs, _ = serializer.load_call(Payload(claim.content_type, claim.payload or b""), task=claim.name)
    found = gates.of([*given_by(claim.inputs, serializer), *args], kwargs, claim.queue)
    if claim.wanted or claim.inputs:
        found = tuple(gate for gate in found if gate.on_duplicate is None)
    limits = {gate.limit: feature.known.note(gate.limit, claim.queue) for gate in found}
    return pack_gates(found, limits).decode("ascii")
