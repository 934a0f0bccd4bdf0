"""A module as it is written for Celery's canvas, with other imports and nothing else, run by a worker and eagerly."""

import textwrap
import threading

import pytest
from support.draining import drain

from fbtasks import FBTasks
from fbtasks.testing import eager

MODULE = textwrap.dedent("""
    from fbtasks import chain, chord, group  # from celery import chain, chord, group

    heard = []

    @app.task
    def add(x, y):
        return x + y

    @app.task
    def mul(x, y):
        return x * y

    @app.task
    def tsum(numbers):
        return sum(numbers)

    @app.task(max_retries=0)
    def refuse(*args):
        raise RuntimeError("refused")

    @app.task
    def on_refused(task_id, error):
        heard.append(str(error))

    @app.task
    def hear(value):
        heard.append(value)

    @app.task(bind=True)
    def power(self, x, n):
        if n == 1:
            return x
        raise self.replace(mul.s(x, x) if n == 2 else power.s(x, n - 1) | mul.s(x))


    def signatures():
        s = add.signature((2, 2), countdown=0)
        assert s.delay().get(timeout=20) == 4
        assert add.s(2, 2)() == 4
        assert (add.s(2, 2).args, add.s(2, y=3).kwargs) == ((2, 2), {"y": 3})
        partial = add.s(2)
        assert partial.delay(4).get(timeout=20) == 6
        assert partial.apply_async((4,), countdown=0).get(timeout=20) == 6
        assert partial.clone((1,)).set(countdown=0, priority=3)().__class__ is int
        assert ~add.s(3, 4) == 7
        assert app.signature("tests.add", args=(2, 2)).delay().get(timeout=20) == 4
        immutable = add.signature((2, 2), immutable=True)
        assert (mul.s(9, 9) | immutable)().get(timeout=20) == 4


    def callbacks():
        assert add.apply_async((2, 2), link=mul.s(16)).get(timeout=20) == 4
        add.apply_async((2, 2), link=[hear.s(), hear.si("immutable")]).get(timeout=20)
        s = add.s(2, 2)
        s.link(hear.s())
        s.link_error(on_refused.s())
        assert s.delay().get(timeout=20) == 4
        try:
            refuse.apply_async((1,), link_error=on_refused.s()).get(timeout=20)
        except RuntimeError as error:
            assert str(error) == "refused"
        else:
            raise AssertionError


    def chains():
        res = chain(add.s(2, 2), add.s(4), add.s(8))()
        assert (res.get(timeout=20), res.parent.get(timeout=20), res.parent.parent.get(timeout=20)) == (16, 8, 4)
        assert (add.s(2, 2) | add.s(4) | add.s(8))().get(timeout=20) == 16
        assert (add.si(2, 2) | add.si(4, 4) | add.si(8, 8))().get(timeout=20) == 16
        c1 = add.s(4) | mul.s(8)
        assert c1(16).get(timeout=20) == 160
        res = chain([add.s(1, 1), mul.s(10)]).apply_async(link=hear.s(), link_error=on_refused.s())
        assert res.get(timeout=20) == 20
        assert (add.s(1, 1) | power.s(4) | add.s(1)).delay().get(timeout=20) == 17


    def groups():
        res = group(add.s(i, i) for i in range(10))()
        assert res.get(timeout=20) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
        assert (res.ready(), res.successful(), res.failed(), res.waiting()) == (True, True, False, False)
        assert (res.completed_count(), len(res.results), res.join(timeout=20)) == (10, 10, res.get())
        g = group(add.s(2, 2), add.s(4, 4))
        assert g.skew(start=0, stop=0).apply_async().get(timeout=20) == [4, 8]
        assert [each.args for each in g.tasks] == [(2, 2), (4, 4)]
        assert group([add.s(10), add.s(20)])(5).get(timeout=20) == [15, 25]
        res = group(add.s(1, 1), refuse.s()).on_error(on_refused.s()).apply_async()
        assert [str(each) for each in res.get(timeout=20, propagate=False)] == ["2", "refused"]
        return res


    def chords():
        assert chord(add.s(i, i) for i in range(10))(tsum.s()).get(timeout=20) == 90
        callback = tsum.s()
        header = [add.s(i, i) for i in range(10)]
        assert chord(header)(callback).get(timeout=20) == 90
        assert chord(header, callback).apply_async().get(timeout=20) == 90
        assert (group(header) | callback | mul.s(2)).delay().get(timeout=20) == 180
        assert (add.s(4, 16) | group(mul.s(i) for i in range(3)) | tsum.s()).delay().get(timeout=20) == 60
        res = chain(group(add.s(1, 1), add.s(2, 2)), tsum.s(), group(add.s(i) for i in range(3)))()
        assert res.get(timeout=20) == [6, 7, 8]
        nested = group(chord([add.s(1, 1), add.s(2, 2)], tsum.s()), add.s(3, 3)) | tsum.s()
        assert nested().get(timeout=20) == 12
        res = chord([add.s(1, 1), refuse.s()], tsum.s().on_error(on_refused.s()))()
        try:
            res.get(timeout=20)
        except Exception as error:
            assert type(error).__name__ == "ChordError"
        else:
            raise AssertionError
""")


@pytest.fixture(params=["worker", "eager"])
def module(request, url):
    """The module, imported, with an app that runs what it enqueues."""
    app = FBTasks("tests", url)
    space = {"app": app, "__name__": "tests"}
    exec(compile(MODULE, "canvas_module.py", "exec"), space)
    if request.param == "eager":
        with eager(app):
            yield space
    else:
        over = threading.Event()

        def work():
            while not over.is_set():
                drain(app)
                over.wait(0.01)

        worker = threading.Thread(target=work)
        worker.start()
        yield space
        over.set()
        worker.join()
    app.close()


def test_the_examples_of_a_canvas(module, wait_for):
    module["signatures"]()
    module["callbacks"]()
    module["chains"]()
    heard = module["heard"]
    wait_for(lambda: sorted(map(str, heard)) == ["20", "4", "4", "immutable", "refused"])
    heard.clear()
    saved = module["groups"]()
    wait_for(lambda: heard == ["refused"])
    module["chords"]()
    wait_for(lambda: len(heard) == 2)
    if saved.id.isdigit():  # else it was run eagerly, and is in no database
        saved.save()
        found = module["app"].GroupResult.restore(saved.id)
        assert [str(each) for each in found.get(propagate=False)] == ["2", "refused"]
