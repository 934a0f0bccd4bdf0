"""fbtasks worker --metrics-port; and that the dashboard and the alerts ask for nothing that is not exported."""

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from support.duties import Worker

from fbtasks import ConfigurationError
from fbtasks import timing as clock
from fbtasks.features.metrics import Metrics, operations, server
from fbtasks.features.metrics.duty import WorkerMetrics
from fbtasks.worker.options import WorkerOptions

DOCS = Path(__file__).parents[3] / "docs"
SOURCE = """
    import time
    from pathlib import Path

    @app.task(name="works", aliases=["worked"])
    def works():
        pass

    @app.task(name='fa"ils', max_retries=1, retry_backoff=False, default_retry_delay=0, autoretry_for=(ValueError,))
    def fails():
        raise ValueError

    @app.task(name="waits")
    def waits():
        Path("begun").touch()
        while not Path("go").exists():
            time.sleep(0.02)
"""


def get(url):
    """Status and text of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def address(project):
    found = re.findall(r"Metrics at (http://\S+)/metrics", project.logs())
    return found[-1] if found else None


def samples(text):
    return [each for family in text_string_to_metric_families(text) for each in family.samples]


def value(found, name, **labels):
    return sum(each.value for each in found if each.name == name and labels.items() <= each.labels.items())


@pytest.mark.acceptance
def test_a_worker_serves_what_it_does(project, wait_for, monkeypatch):
    monkeypatch.setattr(operations, "PATIENCE", 60.0)  # of a busy machine
    with project.producer(SOURCE) as app:
        process = project.worker("-c", "1", "--metrics-port", "0")
        url = wait_for(lambda: address(project))
        for name in ("works", "worked", 'fa"ils', "unknown"):
            app.send_task(name)
        of_task = {"queue": "default", "task": "works"}

        def outcomes():
            found = samples(get(f"{url}/metrics")[1])
            return found if value(found, "fbtasks_worker_tasks_total") == 5 else None

        found = wait_for(outcomes)
        counts = {
            (each.labels["task"], each.labels["outcome"]): each.value
            for each in found
            if each.name == "fbtasks_worker_tasks_total"
        }
        assert counts == {
            ("works", "succeeded"): 2,
            ('fa"ils', "retried"): 1,
            ('fa"ils', "failed"): 1,
            ("other", "parked"): 1,
        }
        for name in ("run", "wait"):
            assert value(found, f"fbtasks_worker_{name}_seconds_count", **of_task) == 2
            assert value(found, f"fbtasks_worker_{name}_seconds_count") == 4, "what did not run is not measured"
            assert 0 < value(found, f"fbtasks_worker_{name}_seconds_sum", **of_task) < 60
        assert value(found, "fbtasks_worker_claim_seconds_count") >= 3
        assert 0 < value(found, "fbtasks_worker_claim_seconds_sum") < 60
        assert value(found, "fbtasks_worker_slots") == 1
        assert not [each for each in found if each.name.endswith("_created")]
        app.send_task("waits")
        wait_for((project.folder / "begun").exists)
        # The child may begin it before the worker has noted that it has sent it.
        wait_for(lambda: value(samples(get(f"{url}/metrics")[1]), "fbtasks_worker_running") == 1)
        assert get(f"{url}/livez") == get(f"{url}/readyz") == (200, "ok\n")
        assert get(f"{url}/nothing") == (404, "/metrics /livez /readyz\n")
        asked = found + samples(project.run("metrics", "--once").stdout)
        process.terminate()
        wait_for(lambda: get(f"{url}/readyz")[0] == 503)
        assert get(f"{url}/livez")[0] == 200
        (project.folder / "go").touch()
        assert process.wait(30) == 0
        assert "A request for metrics has failed" not in project.logs()
    check_queries(asked)


def check_queries(exported):
    """That each metric and each label of the dashboard and of the alerts is among those that are *exported*."""
    board = json.loads((DOCS / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in board["templating"]["list"]]
    page = (DOCS / "how-to" / "metrics.md").read_text()
    alerts = re.findall(r"expr: (?:\|\n)?(.*?)(?=\n +for:|\n +- alert|\n```)", page, re.DOTALL)
    assert (len(queries), len(alerts)) == (19, 6)
    labels = {}
    for each in exported:
        labels.setdefault(each.name, {"instance"}).update(each.labels)
    asked = set()
    for query in [*queries, *alerts]:
        for name, selected in re.findall(r"(fbtasks_\w+)(?:\{(.*?)\})?", query):
            asked.add(name)
            assert name in labels, query
            assert set(re.findall(r"(\w+)=", selected)) <= labels[name], query
        ours = [labels[name] for name in re.findall(r"fbtasks_\w+", query)]
        for names in re.findall(r"(?:by|on) \((.*?)\)", query):
            assert all(set(names.split(", ")) <= each for each in ours), query
    described = set(re.findall(r"^\| `(fbtasks_\w+)", page, re.MULTILINE))
    assert described == {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels}
    assert described == {re.sub(r"_bucket$", "", name) for name in asked}, "the dashboard has all of them"


@pytest.mark.acceptance
def test_a_worker_that_starts_afresh_finds_its_port_free_and_another_one_does_not(project, wait_for):
    project.write("")
    project.anew = True
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    process = project.worker("-c", "1", "--reload", "--metrics-port", port)
    wait_for(lambda: "is ready" in project.logs())
    project.anew = False
    refused = project.run("worker", "-A", "proj", "--metrics-port", port, check=False)
    assert refused.returncode == 2
    assert f"--metrics-port {port}: cannot listen at '127.0.0.1': Address already in use." in refused.stderr
    project.write("'new'")
    wait_for(lambda: project.logs().count("is ready") == 2)
    assert get(f"http://127.0.0.1:{port}/readyz")[0] == 200
    process.terminate()
    assert process.wait(30) == 0


def test_what_cannot_be_is_refused(project):
    (project.folder / "bare.py").write_text("from fbtasks import FBTasks\napp = FBTasks('bare', features=[])\n")
    refused = project.run("worker", "-A", "bare", "--metrics-port", "0", check=False)
    assert refused.returncode == 2
    assert "the app 'bare' was made without the feature 'metrics'" in refused.stderr
    worker = Worker()
    worker.options = WorkerOptions(
        name="w", queues=("q",), pool="solo", concurrency=1, of_features={"metrics_host": "::1"}
    )
    with pytest.raises(ConfigurationError, match="--metrics-host has no effect without --metrics-port"):
        Metrics().duties(worker)


@pytest.mark.emptied
@pytest.mark.parametrize(("pool", "status"), [("threads", 503), ("solo", 200)])
def test_a_worker_whose_loop_stands_still_does_not_live(app, pool, status):
    worker = Worker()
    worker.options = WorkerOptions(name="w", queues=("q",), pool=pool, concurrency=1)
    worker.turned_at = clock.monotonic() - 25
    server = WorkerMetrics(app, worker, "127.0.0.1", 0).server
    with closing(server.socket):
        livez = server.url.replace("metrics", "livez")
        assert get(livez)[0] == 200
        worker.turned_at -= 10
        assert get(livez)[0] == status
        server.shutdown()


@contextmanager
def serving(**probes):
    """A server with these probes."""
    served = server.Server("--port", "127.0.0.1", 0, CollectorRegistry(), {f"/{name}": probes[name] for name in probes})
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield served
    finally:
        served.shutdown()
        served.server_close()
        thread.join()


def test_probes_are_answered_beside_connections_that_ask_for_nothing():
    with serving(livez=lambda: "") as served, ExitStack() as held:
        idle = [held.enter_context(socket.create_connection(served.server_address)) for _ in range(40)]
        idle[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: ")  # the rest of it does not come
        for path in ("livez", "metrics"):
            assert get(served.url.replace("metrics", path))[0] == 200
        assert [each.recv(1) for each in idle[:8]] == [b""] * 8, "the oldest are hung up"
        idle[-1].sendall(b"here\r\n\r\n")
        assert idle[-1].recv(12) == b"HTTP/1.0 200"


def test_connections_that_wait_for_an_answer_are_bounded(monkeypatch, wait_for):
    monkeypatch.setattr(server, "_MOST", 2)
    asked, go = threading.Semaphore(0), threading.Event()

    def livez():
        asked.release()
        return "" if go.wait(30) else "it was not told to go"

    with serving(livez=livez) as served, ExitStack() as held:
        waiting = [held.enter_context(socket.create_connection(served.server_address)) for _ in range(2)]
        for each in waiting:
            each.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            assert asked.acquire(timeout=30)
        with socket.create_connection(served.server_address) as third:
            assert third.recv(1) == b""
        go.set()
        assert [each.recv(12) for each in waiting] == [b"HTTP/1.0 200"] * 2
        wait_for(lambda: answers(served.url))


def answers(url):
    try:
        return get(url)[0] == 200
    except OSError:
        return False
