"""Progress in dashboards."""

import pytest
from support.sheets import Shown

from fbtasks.features.progress import store
from fbtasks.features.progress.store import Progress
from fbtasks.sheet import Private

pytestmark = pytest.mark.emptied


def test_what_a_task_that_runs_has_said_is_shown(app, session, claim, end):
    progress = Shown(app, "progress")
    task = app.task(name="t")(lambda: None).delay()
    assert progress.of_task(task.id) == {}
    claims = claim()
    said = Progress(int(task.id), claims[0].claim_id, "<b>HALF</b>", b'{"done": "\\u00e4"}')
    session.run(lambda t: store.put(t, [said]))
    assert progress.of_task(task.id) == {
        "Progress": Private("<b>HALF</b>"),
        "Details": Private('{"done": "ä"}'),
    }
    end(claims)
    assert progress.of_task(task.id) == {}
    assert (progress.sheet.title, progress.lines(), progress.detail(task.id)) == ("", {}, None)
