"""Pages of features, drawn from their sheets without knowing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from fbtasks.features.web.actions.things import line_buttons
from fbtasks.sheet import Sheet

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context

PAGE: Final = 50


def sheet_of(context: Context, name: str) -> Sheet:
    """Returns the sheet of that name. Raises :class:`NotFound`."""
    if name not in context.dashboard.sheets:
        raise NotFound("There is no such page.")
    return context.dashboard.sheets[name]


def listing(context: Context, sheet: str) -> Response:
    """``/SHEET``."""
    found = sheet_of(context, sheet)
    after = context.request.args.get("after")
    lines = context.database.use(lambda session: found.lines(session, after, PAGE + 1))
    return context.page(
        "sheet.html",
        found.title,
        sheet=sheet,
        empty=found.empty,
        lines=lines[:PAGE],
        next=lines[PAGE - 1].key if len(lines) > PAGE else None,
    )


def show(context: Context, sheet: str, line: str) -> Response:
    """``/SHEET/KEY``."""
    found = sheet_of(context, sheet)
    detail = context.database.use(lambda session: found.detail(session, line))
    if detail is None:
        raise NotFound(f"There is no {line!r} among the {found.title.lower()}.")
    return context.page(
        "line.html",
        line,
        sheet=sheet,
        sheet_title=found.title,
        line=detail.line,
        facts=detail.facts,
        tables=detail.tables,
        graph=detail.graph,
        buttons=line_buttons(context, found, detail.line),
    )
