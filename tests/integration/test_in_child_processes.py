"""What a task asks of its worker, out of a child process of each pool."""

import pytest
from support.children import child_executor

from fbtasks.tasks.call import Claim, Failed, Reason, Requeue, Succeeded, reason_of

SOURCE = """
    import asyncio, contextvars, time
    from fbtasks import HeartbeatTimeout
    bound = contextvars.ContextVar("bound", default=None)

    @app.middleware
    class Binding:
        async def around_run(self, request, next):
            token = bound.set(request.id)
            try:
                return ["around", await next(request)]
            finally:
                bound.reset(token)

    @app.task
    def plain(): return bound.get() == current_request().id

    @app.task
    async def coroutine():
        await asyncio.sleep(0.01)
        return bound.get() == current_request().id

    tenant = contextvars.ContextVar("tenant", default="nobody")

    @app.task
    def sets(): tenant.set("a customer")

    @app.task
    def reads(): return tenant.get()

    @app.task(bind=True)
    def snoozes(self): self.snooze(7)

    @app.task(bind=True)
    async def snoozes_too(self): self.snooze(7.5)

    def note(request, error):
        with open("noted", "a") as file:
            file.write(f"{request.task} {request.retries} {type(error).__name__} {current_request().id}\\n")

    @app.task(on_retry=note, autoretry_for=(OSError,), default_retry_delay=1)
    def falls(): raise OSError

    @app.task(on_retry=note, autoretry_for=(OSError,), default_retry_delay=1)
    async def falls_too(): raise OSError

    @app.task(bind=True, heartbeat_timeout=1)
    def works(self):
        for _ in range(14):
            time.sleep(0.1)
            self.heartbeat()
        return "done"

    @app.task(bind=True, heartbeat_timeout=0.5, soft_time_limit=30, time_limit=60)
    def hangs(self):
        self.heartbeat()
        while True:
            time.sleep(0.02)

    @app.task(bind=True, heartbeat_timeout=1.2, autoretry_for=(HeartbeatTimeout,), default_retry_delay=7)
    async def waits(self):
        await asyncio.sleep(0.2)
        self.heartbeat()
        await asyncio.sleep(60)
"""
SHORT = ["plain", "coroutine", "sets", "reads", "snoozes", "snoozes_too", "falls", "falls_too"]
LONG = ["works", "hangs", "waits"]


@pytest.mark.parametrize("pool", ["processes", "threads", "asyncio"])
def test_what_a_task_does_in_a_child_process_reaches_its_worker(pool, project, monkeypatch, wait_for):
    ended = {}
    with child_executor(project, monkeypatch, SOURCE, pool, places=3) as executor:

        def collect():
            ended.update({each.claim.name[5:]: each for each in executor.collect()})
            return ended.keys()

        wait_for(lambda: collect() or executor.free() >= 3)
        for names in (*([name] for name in SHORT), LONG):
            claims = [
                Claim(number, 99, f"proj.{name}", "q", content_type="application/json", payload=b"[[],{}]")
                for number, name in enumerate(names, 1 + len(ended))
            ]
            assert executor.submit(claims) == []
            wait_for(lambda names=names: collect() >= {*names})
    outcomes = {name: each.outcome for name, each in ended.items()}
    for name, result in (("plain", "true"), ("coroutine", "true"), ("reads", '"nobody"'), ("works", '"done"')):
        assert outcomes[name] == Succeeded("application/json", b'["around",%b]' % result.encode())
    assert outcomes["snoozes"] == Requeue(Reason.SNOOZE, 7)
    assert outcomes["snoozes_too"] == Requeue(Reason.SNOOZE, 7.5)
    assert reason_of(outcomes["falls"]) is reason_of(outcomes["falls_too"]) is Reason.RETRY
    noted = sorted((project.folder / "noted").read_text().splitlines())
    assert noted == ["proj.falls 0 OSError 7", "proj.falls_too 0 OSError 8"]
    hangs, waits = ended["hangs"], ended["waits"]
    assert isinstance(hangs.outcome, Failed)
    assert hangs.outcome.error_type == "fbtasks.errors.HeartbeatTimeout"
    assert hangs.outcome.message == (
        "it was stopped, since it had not called self.heartbeat() for its heartbeat_timeout of 0.5 s"
    )
    assert 0.5 <= hangs.elapsed < 20
    assert reason_of(waits.outcome) is Reason.RETRY
    assert (waits.outcome.delay, waits.outcome.error_type) == (7, "fbtasks.errors.HeartbeatTimeout")
    assert waits.elapsed >= 1.4
