"""Forks of a process that consumes over the kombu transport, and forks of these."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.acceptance


def test_the_child_of_a_child_works_with_connections_of_its_own(app, url):
    app.migrate()
    source = """
        import os, signal, sys
        import kombu, fbtasks.kombu
        def consume(name):
            got = []
            queue = kombu.Queue(name, kombu.Exchange(""), routing_key=name)
            connection = kombu.Connection(sys.argv[1])
            consumer = connection.Consumer([queue], callbacks=[lambda body, message: (got.append(body), message.ack())])
            consumer.consume()
            connection.Producer().publish(name, exchange="", routing_key=name)
            while not got:
                connection.drain_events(timeout=20)
            os.write(1, f"{got}\\n".encode())
            return connection
        def descend(names):
            signal.alarm(60)
            kept = consume(names[0])
            if names[1:]:
                child = os.fork()
                if child == 0:
                    descend(names[1:])
                    fbtasks.kombu.close_all()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            kept.close()
        descend(["parent", "child", "grandchild"])
        fbtasks.kombu.close_all()
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source), url], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["['parent']", "['child']", "['grandchild']"]
