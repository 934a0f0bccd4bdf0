"""Programs in a terminal of their own: what they show, what is typed, and what they leave of the terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte

LEFT = b"\x1b[?25h\x1b[?1049l"
"""What a program sends last that had the whole screen: the cursor is shown, and what was there before is back."""


class Terminal:
    """A terminal with ``fbtasks`` in it, run with *arguments*."""

    def __init__(self, folder, env, *arguments, lines=24, columns=80, term="xterm-256color"):
        self._master, self._slave = pty.openpty()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.received = b""
        self.resize(lines, columns)
        self.before = self.settings()
        # The first process of a session that opens a terminal gets its signals: the shell, which becomes the program.
        shell = ("sh", "-c", 'exec "$@" <"$0" >"$0" 2>"$0"', os.ttyname(self._slave))
        self.process = subprocess.Popen(
            [*shell, sys.executable, "-m", "fbtasks", *arguments],
            cwd=folder,
            env={name: value for name, value in env.items() if name not in ("LINES", "COLUMNS")} | {"TERM": term},
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def settings(self):
        """What the terminal does with what is typed."""
        return termios.tcgetattr(self._slave)

    def resize(self, lines, columns):
        """Makes it as large as that, and tells the program."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)

    def type(self, keys):
        """Presses keys."""
        os.write(self._master, keys.encode())

    def text(self):
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def cell(self, line, column):
        """One character of the screen, with its colours."""
        return self._screen.buffer[line][column]

    def read(self, seconds=0.0):
        """Takes what the program sends within *seconds*."""
        while select.select([self._master], [], [], seconds)[0]:
            data = os.read(self._master, 65536)
            self.received += data
            self._stream.feed(data)
            seconds = 0.0

    def until(self, *texts, gone=(), seconds=60.0):
        """Waits until all *texts* are on the screen, and nothing of *gone* is. Returns what is shown then."""
        limit = time.monotonic() + seconds
        while True:
            shown = self.text()
            if all(text in shown for text in texts) and not any(text in shown for text in gone):
                return shown
            assert time.monotonic() < limit, f"{texts} is not shown:\n{shown}"
            self.read(0.2)
            assert self.process.poll() is None or select.select([self._master], [], [], 0)[0], f"ended:\n{self.text()}"

    def end(self, seconds=60.0):
        """Waits for the end of the program. Returns its exit code."""
        limit = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < limit, f"it goes on:\n{self.text()}"
            self.read(0.1)
        self.read()
        return self.process.returncode

    def send(self, number):
        """Sends a signal to the program."""
        self.process.send_signal(getattr(signal, number))
