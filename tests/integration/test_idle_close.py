"""The connections of a process without transports are closed after a while; one that comes meanwhile is served."""

import threading
from contextlib import closing

from support.sql import rows

from fbtasks.config import Settings
from fbtasks.contrib.celery.transport.process import ConsumerProcess


class Channel:
    """One that has nothing unsettled."""

    busy = False


def test_a_transport_that_comes_while_the_process_leaves_gets_a_consumer_that_stays(app, url, wait_for):
    app.migrate()
    with closing(ConsumerProcess(Settings("kombu", url=url), lease=30.0, delivery_limit=None)) as process:
        former = process.register()
        stopping, go_on, found = threading.Event(), threading.Event(), []
        stop = process._thread.stop

        def slowly():
            stopping.set()
            go_on.wait(30)
            stop()

        process._thread.stop = slowly
        leaves = threading.Thread(target=process._close_if_idle)
        leaves.start()
        assert stopping.wait(30)
        inbox = process.attach()
        comes = threading.Thread(target=lambda: found.append(process.register()))
        comes.start()
        opens = threading.Thread(target=process.watch, args=(Channel(),))
        opens.start()
        opens.join(10)
        assert not opens.is_alive(), "a channel waits for nothing"
        go_on.set()
        leaves.join(30)
        comes.join(30)
        assert found == [process.consumer.number]
        assert found != [former]
        assert rows(app, "SELECT ID FROM QUEUE_PROCESS") == [(found[0],)]
        assert process._thread._thread.is_alive()
        process.detach(inbox)
