"""An app whose modules have gevent replace Python's threads; gevent is no part of what the tests install."""

import pytest

pytestmark = pytest.mark.acceptance

SOURCE = """
    from gevent import monkey

    monkey.{patch}()

    @app.task
    def add(a, b):
        return a + b
"""


@pytest.mark.no_database
@pytest.mark.parametrize(("patch", "what"), [("patch_all", "threading, socket"), ("patch_socket", "socket")])
def test_a_worker_refuses_an_app_that_is_patched_by_gevent(project, patch, what):
    pytest.importorskip("gevent")
    project.write(SOURCE.format(patch=patch))
    done = project.run("worker", "-A", "proj", check=False)
    assert done.returncode == 2
    assert f"gevent replace Python's own modules ({what}" in done.stderr
    assert "--pool threads" in done.stderr
    assert "Traceback" not in done.stderr
