"""A clock that a test moves on, in the place of a module's own."""


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


def stopped(monkeypatch, module):
    """Makes the clock of *module* stand still from now on. Returns it."""
    clock = Clock()
    monkeypatch.setattr(module, "clock", clock)
    return clock
