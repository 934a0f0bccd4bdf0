"""The systems that are compared, each with the settings that its own documentation recommends."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.servers import File, Postgres, Redis, Server


@dataclass(frozen=True, kw_only=True)
class System:
    """One system in one setting."""

    key: str
    label: str
    module: str
    worker: tuple[str, ...]
    """Its command line; the program is one of its virtual environment."""
    backlog: int
    """Tasks that it drains in two to four seconds."""
    broker: type[Server] | None = None
    """The server it needs; None for fbtasks, whose tasks are in the database that is measured."""
    scheme: str = ""
    packages: tuple[str, ...] = ()
    task: str = "noop"
    kept: bool = False
    """Whether it is fbtasks with results kept, which is measured for its drain alone."""


def fbtasks(pool: str, concurrency: int, *, kept: bool = False) -> System:
    """One pool of fbtasks."""
    name = ("kept_" if kept else "") + ("noop_async" if pool == "asyncio" else "noop")
    return System(
        key=f"fbtasks/{pool}/{concurrency}" + ("/kept" if kept else ""), module="fbtasks_app", task=name, kept=kept,
        label=f"fbtasks, {pool} {concurrency}" + (", results kept" if kept else ""), backlog=12_000,
        worker=("python", "-m", "fbtasks", "worker", "-A", "benchmarks.apps.fbtasks_app", "--pool", pool,
                "-c", str(concurrency), "-l", "WARNING"),
    )  # fmt: skip


def _celery(key: str, title: str, broker: type[Server], package: str, pool: str, number: int, backlog: int,
            scheme: str = "") -> System:  # fmt: skip
    return System(
        key=f"{key}/{pool}/{number}", label=f"{title}, {pool} {number}", packages=("celery", package), broker=broker,
        module="celery_app", scheme=scheme, backlog=backlog,
        worker=("celery", "-A", "benchmarks.apps.celery_app", "worker", "--pool", pool, "-c", str(number), "-l",
                "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"),
    )  # fmt: skip


def celery_redis(pool: str, number: int) -> System:
    """Celery on Redis."""
    return _celery("celery-redis", "Celery + Redis", Redis, "redis", pool, number, 1_200)


def pgqueuer(batch: int, backlog: int) -> System:
    """PgQueuer, which has no concurrency but batches."""
    return System(
        key=f"pgqueuer/asyncio/{batch}", label=f"PgQueuer + PostgreSQL, batches of {batch}",
        packages=("pgqueuer", "asyncpg"), broker=Postgres, module="pgqueuer_app", backlog=backlog,
        worker=("python", "-m", "benchmarks.apps.pgqueuer_app", str(batch)),
    )  # fmt: skip


CELERY_SQLITE = _celery("celery-sqlite", "Celery + SQLAlchemy on SQLite", File, "SQLAlchemy", "prefork", 2, 300,
                         scheme="sqla+sqlite:///")  # fmt: skip
HUEY = System(
    key="huey-sqlite/threads/10", label="Huey + SQLite, threads 10", packages=("huey",), broker=File,
    module="huey_app", backlog=6_000,
    worker=("huey_consumer", "benchmarks.apps.huey_app.huey", "-w", "10", "-k", "thread", "-q", "-n"),
)  # fmt: skip
PROCRASTINATE = System(
    key="procrastinate/asyncio/10", label="Procrastinate + PostgreSQL, asyncio 10",
    packages=("procrastinate", "psycopg"), broker=Postgres, module="procrastinate_app", backlog=1_200,
    worker=("procrastinate", "--app=benchmarks.apps.procrastinate_app.app", "--log-level", "warning", "worker",
            "-c", "10"),
)  # fmt: skip
DRAMATIQ = System(
    key="dramatiq/processes/10", label="Dramatiq + Redis, 2 processes of 5 threads", packages=("dramatiq", "redis"),
    broker=Redis, module="dramatiq_app", backlog=8_000,
    worker=("dramatiq", "benchmarks.apps.dramatiq_app", "-p", "2", "-t", "5"),
)  # fmt: skip
