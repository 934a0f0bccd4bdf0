"""Processes in a locale whose letters have another upper case than the engine expects."""

import subprocess

import pytest

SOURCE = """
    import locale

    @app.task
    def letters():
        return "ıi".upper(), locale.setlocale(locale.LC_TIME)
"""


@pytest.fixture(scope="module")
def turkish(tmp_path_factory):
    """The environment of a process in a Turkish locale, which is compiled from its sources in the package locales."""
    folder = tmp_path_factory.mktemp("locales")
    try:
        subprocess.run(
            ["localedef", "-i", "tr_TR", "-f", "UTF-8", folder / "tr_TR.UTF-8"], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the sources of locales are missing: apt-get install locales")
    return {"LOCPATH": str(folder), "LC_ALL": "tr_TR.UTF-8"}


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.no_database
@pytest.mark.parametrize("pool", ["processes", "solo"])
def test_a_queue_is_made_and_served_in_a_turkish_locale(project, turkish, pool):
    project.env.update(turkish)
    project.write(SOURCE)
    assert project.run("migrate", process=True).returncode == 0
    number = project.run("call", "-A", "proj", "proj.letters", process=True).stdout.strip()
    # A process of its own: the tests' fork server was started in another locale.
    project.run("worker", "-A", "proj", "--burst", "--pool", pool, process=True)
    assert project.run("result", number, process=True).stdout == '["II", "C"]\n'
