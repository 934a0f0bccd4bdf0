"""What to use here for a word of Celery's: read only when a word is met that fbtasks does not have.

docs/how-to/from-celery.md is the same as a table; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fbtasks.system.checks import did_you_mean, shown

_ARGUMENTS: Final = "settings are arguments of FBTasks(...); a module of your own can hold them"
_ALWAYS_LATE: Final = "always so: a task stays in the queue until its outcome is recorded"
_ALWAYS_BACK: Final = "always so: a task whose process died runs again, up to crash_limit times"
_ALWAYS_STARTED: Final = "always so: a task that a worker has claimed is STARTED"
_HANDLER: Final = "a method of a class of tasks: @app.task(base=MyTask)"
_RATE: Final = "use app.limit(NAME, rate=...) and @app.task(limits=NAME), which holds for all workers together"
_CANVAS: Final = "not there: a task does not see the workflow that it is a step of"
_STARMAP: Final = "use group(task.s(*args) for args in calls): a task each, and the list of their results"
_MAP: Final = "use group(task.s(item) for item in items): a task each, and the list of their results"
_CHUNKS: Final = "use group(task.s(*args) for args in calls): each call is a task, and workers claim many at once"
_ONE_URL: Final = "the database of url= is the broker and keeps the results"
_NO_EXCHANGE: Final = "there are no exchanges: queue= names the queue, and a worker serves it with -Q"
_COMPRESSION: Final = "not there: payloads are stored as they are. Keep large data elsewhere and pass its key"
_OWN_ARGUMENT: Final = "not there: pass it to the task as an argument"
_LIMITS: Final = "an option of the task: @app.task(time_limit=..., soft_time_limit=...)"
_WORKER_LIMITS: Final = "an option of each task: @app.task(time_limit=..., soft_time_limit=...)"
_PERIODIC: Final = "use app.add_periodic(task, cron='30 2 * * *'), or @app.periodic(every=60) above the task"
_BEAT: Final = "no process is needed: every worker has the schedules of @app.periodic tick. See fbtasks schedules list"
_SIGNALS: Final = "there are no signals: use the hooks on_success, on_retry and on_failure, or @app.middleware"
_RECONNECT: Final = "always so: workers connect again by themselves, with a pause that grows"
_IN_URL: Final = "the url holds it: firebird://user:password@host:3050//path?charset=UTF8"
_EVENTS: Final = "there are no events: fbtasks inspect shows what the database knows"
_WORKER: Final = "an option of the command: fbtasks worker --help"

TASK_OPTIONS: Final = {
    "abstract": "not needed: a class of tasks is no task by itself",
    "acks_late": _ALWAYS_LATE,
    "acks_on_failure_or_timeout": "always so: a failure is an outcome, and is kept for failed_expires",
    "backend": _ONE_URL,
    "compression": _COMPRESSION,
    "exchange": _NO_EXCHANGE,
    "flush_every": "use batch=, as in @app.task(batch=100, wait=2)",
    "flush_interval": "use wait=, as in @app.task(batch=100, wait=2)",
    "filter": "write a decorator of your own, below @app.task",
    "rate_limit": _RATE,
    "reject_on_worker_lost": _ALWAYS_BACK,
    "resultrepr_maxsize": _EVENTS,
    "retry_kwargs": "its values are options of their own: @app.task(max_retries=5, default_retry_delay=10)",
    "routing_key": _NO_EXCHANGE,
    "run": "the task is a function: decorate that",
    "send_events": _EVENTS,
    "shared": "use @fbtasks.shared_task",
    "store_errors_even_if_ignored": "always so: a failure is kept with ignore_result too",
    "Strategy": _WORKER,
    "Request": "use fbtasks.current_request(), which gives the call that is being run",
    "throws": "not there: each failure is logged and kept. dont_autoretry_for names what is not tried again",
    "track_started": _ALWAYS_STARTED,
    "trail": "not there: the calls that a task makes are not recorded with it",
    "typing": "always so: arguments are compared with the function when the call is made",
    "strict": "always so: arguments are compared with the function when the call is made",
    "pydantic": "not there: pass plain values, and build the model inside the task",
    "pydantic_strict": "not there: pass plain values, and build the model inside the task",
    "after_return": _HANDLER,
    "before_start": _HANDLER,
}
"""Options of ``@app.task``."""

CALL_OPTIONS: Final = {
    "add_to_parent": "not there: the calls that a task makes are not recorded with it",
    "chord": _CANVAS,
    "compression": _COMPRESSION,
    "connection": "use task.using(connection).apply_async(...), which enqueues in the transaction of a connection",
    "delivery_mode": "always persistent: the call is a row of a table",
    "exchange": _NO_EXCHANGE,
    "group_id": _CANVAS,
    "headers": _OWN_ARGUMENT,
    "ignore_result": "an option of the task: @app.task(ignore_result=True)",
    "immutable": "use task.si(...), or task.signature(args, immutable=True)",
    "immediate": "not there: a call waits until a worker takes it",
    "mandatory": "always so: the call is in its queue, whether a worker serves that or not",
    "parent_id": _OWN_ARGUMENT,
    "producer": "use task.using(connection).apply_async(...), which enqueues in the transaction of a connection",
    "publisher": "use task.using(connection).apply_async(...), which enqueues in the transaction of a connection",
    "reply_to": _OWN_ARGUMENT,
    "retry": "a connection that was lost is opened again once. What fails after that is raised",
    "retry_policy": "a connection that was lost is opened again once. What fails after that is raised",
    "root_id": _OWN_ARGUMENT,
    "routing_key": _NO_EXCHANGE,
    "shadow": "not there: a task has one name",
    "soft_time_limit": _LIMITS,
    "stamped_headers": _OWN_ARGUMENT,
    "time_limit": _LIMITS,
}
"""Options of ``apply_async``."""

RETRY_OPTIONS: Final = {
    "args": "a retry has the arguments of its call: enqueue another call, and return",
    "eta": "give countdown= in seconds",
    "kwargs": "a retry has the arguments of its call: enqueue another call, and return",
    "queue": "a retry stays in its queue",
    "throw": "always so: self.retry() leaves the function",
}
"""Arguments of ``self.retry()``."""

APP_OPTIONS: Final = {
    "backend": _ONE_URL,
    "beat_schedule": _PERIODIC,
    "beat_scheduler": _BEAT,
    "broker": _ONE_URL + ": FBTasks(name, url)",
    "broker_connection_retry": _RECONNECT,
    "broker_connection_retry_on_startup": "a worker ends when it cannot reach the database at its start",
    "broker_heartbeat": "use fbtasks worker --lease SECONDS",
    "broker_pool_limit": "use pool_size=",
    "broker_transport_options": _IN_URL,
    "broker_url": _ONE_URL + ": FBTasks(name, url)",
    "broker_use_ssl": "the client library's configuration decides (WireCrypt)",
    "changes": _ARGUMENTS,
    "config_source": _ARGUMENTS,
    "enable_utc": "always so: the database keeps UTC. timezone= tells what naive datetimes are in",
    "imports": "use include=",
    "main": "the first argument, which is the app's name",
    "namespace": _ARGUMENTS,
    "result_backend": _ONE_URL,
    "result_compression": _COMPRESSION,
    "result_extended": "always so: fbtasks inspect task ID shows the name, the worker and the times",
    "result_serializer": "use serializer=",
    "set_as_current": "there is no current app: a task of @shared_task finds the app that includes its module",
    "strict_typing": "always so: arguments are compared with the function when the call is made",
    "task_acks_late": _ALWAYS_LATE,
    "task_acks_on_failure_or_timeout": "always so: a failure is an outcome, and is kept for failed_expires",
    "task_always_eager": "use always_eager=",
    "task_annotations": "give the options where the task is defined",
    "task_cls": "use task_class=",
    "task_compression": _COMPRESSION,
    "task_create_missing_queues": "use queues=[...], which names the queues that exist; without it any name will do",
    "task_default_exchange": _NO_EXCHANGE,
    "task_default_priority": "use @app.task(priority=...)",
    "task_default_queue": "use default_queue=",
    "task_default_rate_limit": _RATE,
    "task_default_routing_key": _NO_EXCHANGE,
    "task_eager_propagates": "eager calls keep their exception until result.get() raises it",
    "task_ignore_result": "use @app.task(ignore_result=True)",
    "task_publish_retry": "a connection that was lost is opened again once. What fails after that is raised",
    "task_queue_max_priority": "priorities are always there: -9999 to 9999, higher first",
    "task_queues": "use queues=[...]; a worker serves those of -Q",
    "task_reject_on_worker_lost": _ALWAYS_BACK,
    "task_routes": "use @app.task(queue=...), or queue= of the call",
    "task_send_sent_event": _EVENTS,
    "task_serializer": "use serializer=",
    "task_soft_time_limit": _WORKER_LIMITS,
    "task_store_errors_even_if_ignored": "always so: a failure is kept with ignore_result too",
    "task_time_limit": _WORKER_LIMITS,
    "task_track_started": _ALWAYS_STARTED,
    "worker_concurrency": "use fbtasks worker -c N",
    "worker_max_memory_per_child": "use fbtasks worker --max-memory-per-child MIB, in MiB",
    "worker_max_tasks_per_child": "use fbtasks worker --max-tasks-per-child N",
    "worker_pool": "use fbtasks worker --pool processes|threads|asyncio|solo",
    "worker_prefetch_multiplier": "workers take little ahead by themselves, and long tasks hold back no others",
    "worker_send_task_events": _EVENTS,
}
"""Arguments of ``FBTasks``; ``Celery`` takes its settings there too."""

SETTINGS: Final = ("beat_", "broker_", "control_", "event_", "redis_", "result_", "security_", "task_", "worker_")
"""How settings of Celery begin."""

APP_ATTRIBUTES: Final = {
    "Worker": "the command is fbtasks worker -A MODULE",
    "add_periodic_task": _PERIODIC,
    "amqp": _ONE_URL,
    "backend": "use app.AsyncResult(id), which gives a result; the database keeps them",
    "broker_connection": "use app.connect()",
    "canvas": "import chain, group and chord from fbtasks",
    "config_from_envvar": _ARGUMENTS + ", and FBTASKS_URL the url",
    "config_from_object": _ARGUMENTS,
    "connection": "use app.connect()",
    "connection_for_read": "use app.connect()",
    "connection_for_write": "use app.connect()",
    "control": "use result.revoke(terminate=True), or the commands fbtasks cancel, purge and inspect",
    "current_task": "use fbtasks.current_request()",
    "current_worker_task": "use fbtasks.current_request()",
    "events": _EVENTS,
    "finalize": "not needed: a task is complete when it is defined",
    "gen_task_name": "use @app.task(name=...)",
    "log": "the worker logs with the module logging",
    "main": "use app.name",
    "on_after_configure": "not needed: an app is complete when it is made",
    "on_after_finalize": "not needed: an app is complete when it is made",
    "pool": "use app.connect()",
    "producer_or_acquire": "use task.using(connection).delay(...), which enqueues in the transaction of a connection",
    "register_task": "use app.register(task), for a task made by @fbtasks.task",
    "ResultSet": "call get() of one result after the other",
    "set_current": "there is no current app: a task of @shared_task finds the app that includes its module",
    "set_default": "there is no current app: a task of @shared_task finds the app that includes its module",
    "start": "the command is fbtasks worker -A MODULE",
    "worker_main": "the command is fbtasks worker -A MODULE",
}
"""Attributes of an app."""

TASK_ATTRIBUTES: Final = {
    "AsyncResult": "use app.AsyncResult(id)",
    "acks_late": _ALWAYS_LATE,
    "add_to_chord": _CANVAS,
    "apply": "use task(...), which runs the function here and now, or .delay() within fbtasks.testing.eager(app)",
    "backend": "use app.AsyncResult(id), which gives a result; the database keeps them",
    "chunks": _CHUNKS,
    "map": _MAP,
    "rate_limit": _RATE,
    "run": "use task(...) or task.function(...)",
    "send_event": _EVENTS,
    "starmap": _STARMAP,
    "subtask": "use task.signature(args, kwargs)",
}
"""Attributes of a task."""

SIGNATURE_ATTRIBUTES: Final = {
    "apply": "use .delay() within fbtasks.testing.eager(app)",
    "freeze": "not needed: the results have their ids when the workflow is enqueued; set(task_id=...) gives one",
    "from_dict": "not there: a signature is made by task.s(...), or app.signature(name, args)",
    "id": "a signature has none before it is enqueued: use the id of its result, or set(task_id=...)",
    "run": "use delay()",
    "stamp": _OWN_ARGUMENT,
    "subtask_type": "not there: use isinstance(signature, fbtasks.Signature)",
    "type": "use task",
    "unchain_tasks": "use tasks, the signatures that a chain is made of",
}
"""Attributes of a signature."""

RESULT_ATTRIBUTES: Final = {
    "args": "use fbtasks inspect task ID, which shows the arguments, while they are kept",
    "backend": "the database keeps the results",
    "children": "not there: the calls that a task makes are not recorded with it",
    "collect": "use get()",
    "date_done": "use fbtasks inspect task ID, which shows the times",
    "graph": "not there: the calls that a task makes are not recorded with it",
    "ignored": "use @app.task(ignore_result=True)",
    "iterdeps": "not there: the calls that a task makes are not recorded with it",
    "join": "call get() of one result after the other",
    "kwargs": "use fbtasks inspect task ID, which shows the arguments, while they are kept",
    "maybe_reraise": "use get(), which raises the exception of a failed task",
    "maybe_throw": "use get(), which raises the exception of a failed task",
    "name": "use fbtasks inspect task ID, which shows the name",
    "queue": "use fbtasks inspect task ID, which shows the queue",
    "retries": "use fbtasks inspect task ID, which shows the tries",
    "task_id": "use id",
    "then": "await the result, or use the hook on_success of the task",
    "wait": "use get()",
    "worker": "use fbtasks inspect task ID, which shows the worker",
}
"""Attributes of a result."""

REQUEST_ATTRIBUTES: Final = {
    "called_directly": "use request.id, which is empty when the function was called directly",
    "chain": _CANVAS,
    "chord": _CANVAS,
    "correlation_id": "use request.id",
    "delivery_info": "use request.queue and request.priority",
    "group": _CANVAS,
    "headers": _OWN_ARGUMENT,
    "hostname": "use socket.gethostname()",
    "is_eager": "use request.eager",
    "parent_id": _OWN_ARGUMENT,
    "root_id": _OWN_ARGUMENT,
    "timelimit": "use task.options.time_limit and task.options.soft_time_limit",
}
"""Attributes of the call that is being run."""

NAMES: Final = {
    "Celery": "use FBTasks, as in app = FBTasks('name', 'firebird:///path/queue.fdb')",
    "Ignore": "not there: a task that returns has succeeded. With @app.task(ignore_result=True) nothing of it is kept",
    "MaxRetriesExceededError": "not there: a task whose retries are used up has failed with its last exception",
    "Reject": "not there: raise an exception, and the task is kept as failed until it is put back or discarded",
    "Retry": "call self.retry(), which leaves the function by itself",
    "chunks": _CHUNKS,
    "crontab": "use the text of it: @app.periodic(cron='30 2 * * mon-fri')",
    "current_app": "there is no current app: a task of @shared_task finds the app that includes its module",
    "current_task": "use fbtasks.current_request()",
    "get_task_logger": "use logging.getLogger(__name__): the worker logs with the module logging",
    "signals": _SIGNALS,
    "signature": "use task.s(...), or app.signature(name, args)",
    "uuid": "use str(uuid.uuid4()), for a task_id of your own",
    "xmap": _MAP,
    "xstarmap": _STARMAP,
}
"""Names that are imported from celery."""

COMMANDS: Final = {
    "amqp": "there is no broker: use fbtasks inspect queues",
    "beat": _BEAT,
    "control": "use fbtasks cancel ID, fbtasks purge QUEUE; SIGTERM stops a worker",
    "events": "there are no events: use fbtasks inspect active, or fbtasks inspect stats",
    "flower": "use fbtasks inspect queues, workers, failed and stats",
    "graph": "not there",
    "list": "use fbtasks inspect queues",
    "logtool": "not there",
    "multi": "start one worker for each: fbtasks worker -A MODULE -n NAME, as services of systemd",
    "report": "use fbtasks --version",
    "revoke": "use fbtasks cancel ID",
    "shell": "use python -i -c 'from MODULE import app'",
    "status": "use fbtasks inspect workers, or fbtasks health",
    "upgrade": "not there",
}
"""Commands of ``celery``."""

INSPECT_COMMANDS: Final = {
    "active_queues": "use fbtasks inspect workers",
    "clock": "not there: the database's clock is the only one",
    "conf": "the worker says what it serves when it starts",
    "memdump": "not there",
    "memsample": "not there",
    "objgraph": "not there",
    "ping": "use fbtasks inspect workers, which shows the heartbeats; fbtasks health is for monitoring",
    "query_task": "use fbtasks inspect task ID",
    "registered": "the worker lists its tasks when it starts; in Python: app.tasks",
    "report": "use fbtasks inspect workers",
    "reserved": "use fbtasks inspect active, which shows what workers have claimed",
    "revoked": "use fbtasks inspect cancelled",
}
"""Commands of ``celery inspect``."""

POOLS: Final = {
    "eventlet": "use threads for tasks that wait, or asyncio for coroutine functions",
    "gevent": "use threads for tasks that wait, or asyncio for coroutine functions",
    "prefork": "it is called processes here, and is the default",
}
"""Pools of ``celery worker``."""

COMMAND_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "fbtasks": {
        "-C": "set NO_COLOR=1 in the environment",
        "-b": "use --url, or FBTASKS_URL in the environment",
        "-q": "use fbtasks worker --loglevel WARNING",
        "--broker": "use --url, or FBTASKS_URL in the environment",
        "--config": _ARGUMENTS,
        "--loader": _ARGUMENTS,
        "--no-color": "set NO_COLOR=1 in the environment",
        "--quiet": "use fbtasks worker --loglevel WARNING",
        "--result-backend": _ONE_URL,
        "--workdir": "cd there first",
    },
    "call": {
        "-a": "use --args",
        "-k": "use --kwargs",
        "--eta": "use --countdown SECONDS",
        "--exchange": "use --queue NAME",
        "--expires": "an option of the task: @app.task(expires=...)",
        "--routing-key": "use --queue NAME",
        "--serializer": "an option of the task: @app.task(serializer=...)",
    },
    "inspect": {
        "-d": "leave it out: the database knows what all workers do",
        "-j": "use --json",
        "-t": "leave it out: the database answers, not the workers",
        "--destination": "leave it out: the database knows what all workers do",
        "--timeout": "leave it out: the database answers, not the workers",
    },
    "purge": {"-Q": "give the queue alone: fbtasks purge QUEUE", "-f": "use -y", "--force": "use -y"},
    "result": {"--traceback": "use fbtasks inspect task ID"},
    "worker": {
        "-B": _BEAT,
        "-D": "have systemd or the like run the worker: docs/how-to/systemd.md",
        "-E": "not needed: what the worker does is in the database, see fbtasks inspect",
        "-I": "use FBTasks(include=[...])",
        "-O": "always so: workers take little ahead, and long tasks hold back no others",
        "-S": "not needed: cancellations are in the database",
        "-X": "use -Q NAMES, which lists the queues to serve",
        "-s": _BEAT,
        "--autoscale": "use -c N; idle processes cost little, and more workers can be started at any time",
        "--beat": _BEAT,
        "--detach": "have systemd or the like run the worker: docs/how-to/systemd.md",
        "--discard": "use fbtasks purge QUEUE",
        "--events": "not needed: what the worker does is in the database, see fbtasks inspect",
        "--exclude-queues": "use -Q NAMES, which lists the queues to serve",
        "--executable": "start the worker with that Python: PYTHON -m fbtasks worker",
        "--gid": "let the service manager set it: docs/how-to/systemd.md",
        "--heartbeat-interval": "use --lease SECONDS",
        "--hostname": "use -n NAME, to which the host is added",
        "--include": "use FBTasks(include=[...])",
        "--optimization": "always so: workers take little ahead, and long tasks hold back no others",
        "--pidfile": "not needed: the worker stays in the foreground, and fbtasks inspect workers shows its pid",
        "--prefetch-multiplier": "workers take little ahead by themselves, and long tasks hold back no others",
        "--purge": "use fbtasks purge QUEUE",
        "--schedule": _BEAT,
        "--scheduler": _BEAT,
        "--soft-time-limit": _WORKER_LIMITS,
        "--statedb": "not needed: cancellations are in the database",
        "--task-events": "not needed: what the worker does is in the database, see fbtasks inspect",
        "--time-limit": _WORKER_LIMITS,
        "--uid": "let the service manager set it: docs/how-to/systemd.md",
        "--umask": "let the service manager set it: docs/how-to/systemd.md",
        "--without-gossip": "always so: workers meet in the database alone",
        "--without-heartbeat": "leave it out: the heartbeat is how others see that a worker lives",
        "--without-mingle": "always so: workers meet in the database alone",
    },
}
"""Options of the commands of ``celery``; those of the first are for all."""


def instead(word: str, words: Mapping[str, str], known: Iterable[str] = ()) -> str:
    """What to use for *word*, behind a colon; else a full stop and the words of *known* that are close to it."""
    answer = words.get(word)
    if answer is None and words is APP_OPTIONS and word.startswith(SETTINGS):
        answer = "a setting of Celery's that has no counterpart here, see docs/how-to/from-celery.md"
    return f": {answer}." if answer else f".{did_you_mean(word, known)}"


def unknown_options(what: str, given: Iterable[str], words: Mapping[str, str], known: Iterable[str]) -> str:
    """The message for options that do not exist: what to use for each, or else which options there are."""
    given, known = sorted(given), sorted(known)
    answers = [instead(word, words, known) for word in given]
    said = " ".join(f"unknown {what} {shown(word)}{answer}" for word, answer in zip(given, answers, strict=True))
    answered = all(answer.startswith(":") for answer in answers)
    return said if answered else f"{said} Known options: {', '.join(known)}."


def no_attribute(owner: str, name: str, words: Mapping[str, str]) -> str:
    """The message for an attribute that *owner* does not have."""
    return f"{owner} has no attribute {name!r}{instead(name, words)}"
