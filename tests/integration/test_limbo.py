"""A two-phase commit that was prepared, and whose program died: nobody knows whether it is to be committed."""

import pytest
from support.capture import script
from support.draining import drain
from support.limbo import end_limbo, prepare
from support.sources import apply
from support.sql import execute, rows

from fbtasks.queue import tasks


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_it_holds_its_own_rows_alone(app, url, how):
    heard = []
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    app.on_change("T", insert=True, name="changed")(lambda change: heard.append(("changed", change.key["ID"])))
    add = app.task(name="add")(lambda number: heard.append(("add", number)))
    apply(app)
    for number in (5, 6):
        add.apply_async((number,), queue="other")
    held, free = (number for (number,) in rows(app, "SELECT ID FROM QUEUE_TASK ORDER BY ID"))
    app.close()
    prepare(
        url, "INSERT INTO T VALUES (1)", "EXECUTE PROCEDURE FBTASKS.ENQUEUE('add', '[1]')",
        f"UPDATE QUEUE_TASK SET TRY_COUNT = TRY_COUNT WHERE ID = {held}",
    )  # fmt: skip
    execute(app, "INSERT INTO T VALUES (2)")
    add.delay(2)
    drain(app, ["default"])
    assert sorted(heard) == [("add", 2), ("changed", 2)]
    with app.database.session() as session:

        def claim():
            return session.run(lambda t: [each.id for each in tasks.claim(t, 1, "other", 10, None)])

        assert claim() == [free]
        end_limbo(app, how)
        assert claim() == [held]
    drain(app, ["default"])
    assert sorted(heard[2:]) == ([("add", 1), ("changed", 1)] if how == "commit" else [])
