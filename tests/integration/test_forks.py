"""A program that forks: what the child may not use is refused, and the parent loses nothing."""

import pytest


def test_a_fork_with_open_connections_is_refused_and_loses_nothing(app, project):
    out = project.python("""
        import os
        from fbtasks import FBTasks, ForkError
        app = FBTasks("a")
        t = app.task(name="t")(lambda: 1)
        t.delay_many([()] * 50)
        child = os.fork()
        if child == 0:
            try:
                t.delay()
            except ForkError:
                os._exit(7)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        t.delay_many([()] * 50)
        with app.connect() as connection, connection.cursor() as cursor:
            print(cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()[0])
    """)
    assert out.split() == ["7", "100"]


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("before", "inside"),
    [("", ""), ("app.close()", "t.delay()"), ("", "daemonize()")],
    ids=["open", "used by the child", "daemon"],
)
def test_a_child_that_ends_in_the_ordinary_way_does_its_parent_no_harm(project, before, inside):
    """The exit of a process shuts the engine down, with the threads and the locks of the parent."""
    out = project.python(f"""
        import ctypes, os, sys
        from fbtasks import FBTasks
        app = FBTasks("a")
        t = app.task(name="t")(lambda: 1)

        def daemonize():
            os.setsid()
            if (second := os.fork()):
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))

        for status in (0, 3):
            t.delay()
            {before}
            child = os.fork()
            if child == 0:
                {inside}
                print("child", flush=True)
                ctypes.CDLL(None).puts(b"child's library")
                sys.exit(status)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        t.delay()
        with app.connect() as connection, connection.cursor() as cursor:
            print(cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()[0])
    """)
    ended = ["child", "child's library"]
    assert out.splitlines() == [*ended, "0", *ended, "3", "5" if "delay" in inside else "3"]


@pytest.mark.no_database
@pytest.mark.embedded("loading the engine is what takes long")
def test_a_fork_while_another_thread_makes_the_first_connection_is_refused(project):
    out = project.python("""
        import os, signal, sys, threading, time, traceback
        from fbtasks import FBTasks, ForkError
        from fbtasks.firebird.embedded.lockdir import exclusive, folder_of
        app = FBTasks("a")
        thread = threading.Thread(target=lambda: app.connect().close())
        def waits():
            frame = sys._current_frames().get(thread.ident)
            return any(each.f_code.co_name == "exclusive" for each, _ in traceback.walk_stack(frame))
        with exclusive(folder_of(app.settings.url.database) / "create.lock"):
            thread.start()
            while not waits():
                time.sleep(0.01)
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    app.connect()
                except ForkError:
                    os._exit(7)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        thread.join()
        print(app.task(name="t")(lambda: 1).delay().status)
    """)
    assert out.split() == ["7", "PENDING"]


@pytest.mark.embedded("a server has its own lock files")
def test_a_lock_file_is_free_again_while_a_fork_lives(project):
    out = project.python("""
        import fcntl, os, pathlib
        from fbtasks.firebird.embedded.lockdir import exclusive, open_lock_file
        path = pathlib.Path("some.lock")
        reader, writer = os.pipe()
        with exclusive(path):
            child = os.fork()
            if child == 0:
                os.close(writer)
                os.read(reader, 1)
                os._exit(0)
        fcntl.flock(open_lock_file(path), fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(writer)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert out == "0\n"
