"""Calls of on_failure hooks: a task of its own makes each, which the failure of another task has enqueued."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from fbtasks.errors import DatabaseError
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.tasks import with_payload
from fbtasks.run.claimed import Run, hooks_at, read_arguments, request_of
from fbtasks.run.invocation import Calls, Invocation
from fbtasks.tasks.call import Claim, Failed
from fbtasks.tasks.handlers import APP_HOOK, hook_name
from fbtasks.tasks.remote_error import rebuild_exception
from fbtasks.tasks.request import running

if TYPE_CHECKING:
    from fbtasks.app import FBTasks, Task

LIMIT: Final = 60.0
"""Seconds that the hooks of a task may take together."""


class HookInvocation(Invocation):
    """Calls the function with the payload as it is: the database has written it, in JSON, which an app may refuse."""

    is_internal = True

    def calls(self, run: Run) -> Calls:
        """The one call."""
        part = run.part(run.claim, (run.claim.payload,))
        value, error = yield part
        return run.returned(part, value) if error is None else run.raised(part, error)


def hook_tasks(app: FBTasks, kind: type[Task[..., Any]]) -> dict[str, Task[..., Any]]:
    """The tasks of that *kind* that call the on_failure hooks of *app*, by their names."""
    names = {hook_name(name) for name, task in app.tasks.items() if hooks_at("on_failure", app, task)}
    if names or app.on_failure is not None:
        names.add(APP_HOOK)
    found = {}
    for name in names:
        options = app.task_options(
            name=name, bind=True, ignore_result=True, time_limit=LIMIT, autoretry_for=(DatabaseError,)
        )
        found[name] = task = kind(call_hooks, options)
        task.invocation = HookInvocation()
        task.bound_to(app)
    return found


def call_hooks(self: Task[..., Any], payload: bytes) -> None:
    """Calls all hooks of a task that has failed, then raises what the last of them raised.

    None are called when an operator has put that task back, or it was deleted.
    """
    app = self.app
    number, retries = json.loads(payload)[0]
    found = app.database.use(lambda session: _failure(app, session, number, retries))
    if found is None:
        return
    claim, failed = found
    task = app.tasks.get(claim.name)
    args, kwargs, headers, _ = read_arguments(app, claim, task)  # what cannot be read is left out
    request, error = request_of(claim, task, args, kwargs, headers), rebuild_exception(failed)
    with running(request), ExitStack() as calls:
        for hook in reversed(hooks_at("on_failure", app, task)):
            calls.callback(hook, request, error)


def _failure(app: FBTasks, session: Session, number: int, retries: int) -> tuple[Claim, Failed] | None:
    found = results.failure(session, number, retries)
    if found is None:
        return None
    claim = with_payload(session, found[0])
    for feature in app.features.which("received")[::-1] if claim.fed else ():
        given = feature.received(session, claim)
        claim = given if isinstance(given, Claim) else claim
    return claim, found[1]
