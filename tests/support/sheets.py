"""What a dashboard shows of a feature, and does with it: each value is of a kind that it draws."""

from datetime import datetime, timedelta

from fbtasks.sheet import Called, Private, Ref, Spark, TaskRef

_PLAIN = (str, int, float, bool, timedelta, TaskRef, Ref, Spark, Private, Called, type(None))


class Shown:
    """The sheet of a feature of *app*."""

    def __init__(self, app, feature):
        self.app = app
        (self.sheet,) = app.features[feature].sheets()

    def _use(self, work):
        return self.app.database.use(work)

    def lines(self, after=None, most=50):
        """The lines of a page, by their keys."""
        found = self._use(lambda session: self.sheet.lines(session, after, most))
        for each in found:
            self._check(each)
        assert len(found) <= most
        return {each.key: each for each in found}

    def keys(self, most):
        """The keys of all lines, read in pages of *most*."""
        found = []
        while page := list(self.lines(found[-1] if found else None, most)):
            found += page
            if len(page) < most:
                break
        return found

    def detail(self, key):
        """The page of a line; None: there is none."""
        found = self._use(lambda session: self.sheet.detail(session, key))
        if found is not None:
            self._check(found.line)
            _check_cells(found.facts)
            for each in (cells for rows in found.tables.values() for cells in rows):
                _check_cells(each)
        return found

    def of_task(self, task):
        """What the page of a task has of the feature."""
        found = self._use(lambda session: self.sheet.of_task(session, int(task)))
        _check_cells(found)
        return found

    def act(self, action, key, **values):
        """Takes an action that the line offers, with the values that its fields are filled in with, and *values*."""
        found, line = self.sheet.actions[action], self.detail(key).line
        assert action in line.actions
        given = {field.name: line.values.get(field.name, field.value) for field in found.fields}
        return found.do(self.app, key, {**given, **values})

    def _check(self, line):
        assert set(line.actions) <= set(self.sheet.actions)
        _check_cells(line.cells)
        assert all(isinstance(each, str) for each in line.values.values())


def _check_cells(cells):
    for title, value in cells.items():
        for each in value if isinstance(value, list) else [value]:
            assert isinstance(title, str)
            assert isinstance(each, _PLAIN) or (isinstance(each, datetime) and each.tzinfo is not None), (title, each)
