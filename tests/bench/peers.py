"""The systems that fbtasks is compared with, each with the settings that its own documentation recommends."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.servers import File, Postgres, Redis, Unavailable, die_with_parent
from fbtasks.bench.figures import Sample, percentile

TESTS = Path(__file__).resolve().parents[1]
DRAIN_LIMIT = 120.0


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One system in one setting."""

    key: str
    title: str
    packages: tuple[str, ...]
    server: type
    module: str
    worker: tuple[str, ...]
    """Its command line, after the program's folder."""
    backlog: int
    """Tasks that it drains in some seconds."""
    setting: str = ""
    scheme: str = ""
    stop: int = signal.SIGTERM
    counted: bool = False
    """Whether its tasks count themselves, since they do not run in their order."""
    latency: bool = False
    single: bool = False
    """Whether its enqueue is measured here, and not in another of its settings."""

    @property
    def label(self):
        return f"{self.title}, {self.setting}"


def _celery(key, title, server, packages, pool, concurrency, backlog, scheme=""):
    return Peer(
        key=f"{key}/{pool}/{concurrency}", title=f"{title} ({pool})", packages=packages, server=server,
        module="celery_app", scheme=scheme, backlog=backlog, setting=f"{concurrency} at once",
        worker=("celery", "-A", "bench.apps.celery_app", "worker", "--pool", pool, "-c", str(concurrency), "-l",
                "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"),
        counted=True, latency=concurrency == 2, single=(pool, concurrency) == ("prefork", 2),
    )  # fmt: skip


def _huey(concurrency):
    return Peer(
        key=f"huey-sqlite/threads/{concurrency}", title="Huey + SQLite (threads)", packages=("huey",), server=File,
        module="huey_app", backlog=15_000, setting=f"{concurrency} at once",
        worker=("huey_consumer", "bench.apps.huey_app.huey", "-w", str(concurrency), "-k", "thread", "-q", "-n"),
        latency=concurrency == 2, single=concurrency == 2,
    )  # fmt: skip


def _procrastinate(concurrency):
    return Peer(
        key=f"procrastinate/asyncio/{concurrency}", title="Procrastinate + PostgreSQL (asyncio)",
        packages=("procrastinate", "psycopg"), server=Postgres, module="procrastinate_app", backlog=2_000,
        setting=f"{concurrency} at once",
        worker=("procrastinate", "--app=bench.apps.procrastinate_app.app", "--log-level", "warning", "worker", "-c",
                str(concurrency)),
        latency=concurrency == 2, single=concurrency == 2,
    )  # fmt: skip


def _dramatiq(concurrency):
    return Peer(
        key=f"dramatiq/threads/{concurrency}", title="Dramatiq + Redis (2 processes with threads)",
        packages=("dramatiq", "redis"), server=Redis, module="dramatiq_app", backlog=4_000,
        setting=f"{concurrency} at once",
        worker=("dramatiq", "bench.apps.dramatiq_app", "-p", "2", "-t", str(concurrency // 2)),
        counted=True, latency=concurrency == 2, single=concurrency == 2,
    )  # fmt: skip


def _pgqueuer(batch):
    return Peer(
        key=f"pgqueuer/asyncio/{batch}", title="PgQueuer + PostgreSQL (asyncio)", packages=("pgqueuer", "asyncpg"),
        server=Postgres, module="pgqueuer_app", backlog=20_000, setting=f"batches of {batch}",
        worker=("python", "-m", "bench.apps.pgqueuer_app", str(batch)), latency=batch == 10, single=batch == 10,
    )  # fmt: skip


def all_peers():
    """Every system in every setting."""
    redis, sqlite = ("celery", "redis"), ("celery", "SQLAlchemy")
    return [
        *(_celery("celery-redis", "Celery + Redis", Redis, redis, pool, concurrency, 6_000)
          for pool in ("prefork", "threads") for concurrency in (2, 10)),
        *(make(concurrency) for make in (_huey, _procrastinate, _dramatiq) for concurrency in (2, 10)),
        *(_pgqueuer(batch) for batch in (10, 100)),
        *(_celery("celery-sqlite", "Celery + SQLAlchemy on SQLite", File, sqlite, "prefork", concurrency, 1_500,
                  scheme="sqla+sqlite:///") for concurrency in (2, 10)),
    ]  # fmt: skip


class Peers:
    """The peers that can be had, their servers and their virtual environment."""

    def __init__(self, venv, folder):
        self.programs = Path(venv) / "bin"
        self.folder = Path(folder)
        self.servers = {}
        self.runs = 0
        self.missing = {}
        self.versions = self._versions()

    def _versions(self):
        """The versions of all packages in the virtual environment, by their names in lower case."""
        script = (
            "import importlib.metadata, json;"
            "print(json.dumps({d.name.lower(): d.version for d in importlib.metadata.distributions()}))"
        )
        try:
            done = subprocess.run([self.programs / "python", "-c", script], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return {}
        return json.loads(done.stdout)

    def version_of(self, peer):
        parts = [f"{name} {self.versions.get(name.lower(), 'missing')}" for name in peer.packages]
        return ", ".join([*parts, f"{peer.server.name} {self._server(peer).version()}"])

    def _server(self, peer):
        if peer.server not in self.servers:
            self.servers[peer.server] = peer.server(self.folder / peer.server.name.lower())
        return self.servers[peer.server]

    def ready(self, peer):
        """Starts what the peer needs. Raises Unavailable."""
        lacking = [name for name in peer.packages if name.lower() not in self.versions]
        if lacking:
            raise Unavailable(f"not installed: {', '.join(lacking)}")
        server = self._server(peer)
        if not getattr(server, "started", False):
            if getattr(server, "refused", None):
                raise Unavailable(server.refused)
            try:
                server.start()
            except Unavailable as error:
                server.refused = str(error)
                raise
            server.started = True

    def fresh(self, peer):
        """The URL of an empty broker."""
        return self._server(peer).fresh()

    def measure(self, peer, scale):
        """Samples of one peer: its drain, and where it says so its enqueue and its latency."""
        count = max(200, int(peer.backlog * scale))
        with Bout(self, peer) as bout:
            bout.produce("backlog", count, install=True)
            begun = time.monotonic()
            bout.start_worker()
            end = bout.end_of_drain(count)
            marks = bout.marks()
            yield Sample(f"peer/{peer.key}/drain", f"drain, {peer.label}", count / (end - marks["first"]), "tasks/s")
            assert marks["first"] >= begun
            if peer.latency:
                sent = max(100, int(500 * scale))
                bout.produce("stamps", sent, 100)
                times = sorted(1000 * seconds for seconds in bout.stamps(sent))
                for name, share in (("p50", 0.5), ("p99", 0.99)):
                    yield Sample(f"peer/{peer.key}/latency/{name}", f"latency at 100 tasks/s, {name}, {peer.label}",
                                 percentile(times, share), "ms")  # fmt: skip
        if peer.single:
            number = max(100, int(1000 * scale))
            with Bout(self, peer) as bout:
                found = bout.produce("single", number, install=True)
            yield Sample(
                f"peer/{peer.key}/single", f"enqueue, one at a time, {peer.title}", number / found["seconds"], "tasks/s"
            )

    def close(self):
        for server in self.servers.values():
            server.close()


class Bout:
    """A peer with an empty broker, its worker and its producers; ended with the block."""

    def __init__(self, peers, peer):
        self.peers, self.peer = peers, peer
        peers.runs += 1
        self.folder = peers.folder / f"run{peers.runs}"
        self.folder.mkdir()
        self.out = self.folder / "out"
        self.out.touch()
        self.log = self.folder / "log"
        self.worker = None
        self.env = {
            **{name: value for name, value in os.environ.items() if name not in ("FBTASKS_URL", "VIRTUAL_ENV")},
            "PYTHONPATH": str(TESTS), "BENCH_OUT": str(self.out),
            "BENCH_BROKER": peer.scheme + peers._server(peer).fresh(),
            "PATH": f"{peers.programs}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip

    def __enter__(self):
        return self

    def produce(self, what, count, rate=0, *, install=False):
        command = [
            self.peers.programs / "python",
            "-m",
            "bench.apps.producer",
            self.peer.module,
            what,
            str(count),
            str(rate),
        ]
        env = {**self.env, **({"BENCH_INSTALL": "1"} if install else {})}
        done = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise Unavailable(f"its producer failed: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def start_worker(self):
        program, *arguments = self.peer.worker
        with self.log.open("wb") as log:
            self.worker = subprocess.Popen(
                [self.peers.programs / program, *arguments], env=self.env, cwd=self.folder, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip

    def lines(self):
        return [line.split() for line in self.out.read_text().splitlines()]

    def marks(self):
        return {words[0]: float(words[1]) for words in self.lines() if len(words) == 2 and words[0].isalpha()}

    def wait_for(self, mark, seconds):
        self._wait(lambda: mark in self.marks(), seconds)

    def end_of_drain(self, count):
        """When the last task was done."""
        self.wait_for("last", DRAIN_LIMIT)
        if not self.peer.counted:
            return self.marks()["last"]
        done = Path(f"{self.out}.done")
        self._wait(lambda: done.stat().st_size >= count + 100, DRAIN_LIMIT)  # with the warm-up's
        return time.monotonic()

    def stamps(self, count):
        def found():
            return [float(words[1]) for words in self.lines() if words[0][:1].isdigit()]

        self._wait(lambda: len(found()) >= count, DRAIN_LIMIT)
        return found()

    def _wait(self, condition, seconds):
        limit = time.monotonic() + seconds
        while not condition():
            if self.worker.poll() is not None:
                raise Unavailable(f"its worker ended: {self.log.read_text(errors='replace').strip()[-500:]}")
            if time.monotonic() > limit:
                raise Unavailable(f"its worker was not done after {seconds:g} seconds")
            time.sleep(0.01)

    def __exit__(self, *_):
        if self.worker is None:
            return
        if self.worker.poll() is None:
            self.worker.send_signal(self.peer.stop)
            try:
                self.worker.wait(15)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.worker.pid, signal.SIGKILL)  # and whatever it left behind
        except ProcessLookupError:
            pass
        self.worker.wait()
