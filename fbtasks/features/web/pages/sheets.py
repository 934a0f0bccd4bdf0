"""Pages of features, drawn from their sheets without knowing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from fbtasks.features.web.actions.things import line_buttons
from fbtasks.sheet import Detail, Sheet

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context

PAGE: Final = 50


def sheet_of(context: Context, name: str) -> Sheet:
    """Returns the sheet of that name. Raises :class:`NotFound`."""
    found = context.dashboard.sheets.get(name)
    if found is None:
        raise NotFound("There is no such page.")
    return found


def listing(context: Context, sheet: str) -> Response:
    """``/SHEET``."""
    found = sheet_of(context, sheet)
    if not context.as_json and (served := found.served) is not None:
        return Response.from_app(served, context.request.environ, buffered=True)
    if not found.title:
        raise NotFound("There is no such list.")
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


def detail_of(context: Context, sheet: str, line: str) -> tuple[Sheet, Detail]:
    """Returns a sheet, and what it has of a line. Raises :class:`NotFound`."""
    found = sheet_of(context, sheet)
    detail = context.database.use(lambda session: found.detail(session, line))
    if detail is None:
        raise NotFound(f"There is no {line!r} among the {found.title.lower() or sheet}.")
    return found, detail


def show(context: Context, sheet: str, line: str) -> Response:
    """``/SHEET/KEY``."""
    found, detail = detail_of(context, sheet, line)
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
