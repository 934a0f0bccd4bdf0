"""What runs here, and who has done what with the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from fbtasks.database import features, migrate
from fbtasks.features.web import store
from fbtasks.firebird.session import database_info
from fbtasks.version import VERSION

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context
    from fbtasks.firebird.session import Session

PAGE: Final = 50
_ENGINE: Final = "SELECT RDB$GET_CONTEXT('SYSTEM', 'ENGINE_VERSION') FROM RDB$DATABASE"


def show(context: Context) -> Response:
    """``/system``."""

    def read(session: Session) -> dict[str, Any]:
        size, pages, ods, minor, oldest, following = database_info(
            session.connection,
            "PAGE_SIZE", "PAGES_USED", "ODS_VERSION", "ODS_MINOR_VERSION", "OLDEST_SNAPSHOT", "NEXT_TRANSACTION",
        )  # fmt: skip
        return {
            "facts": {
                "fbtasks": VERSION,
                "app": context.app.name,
                "database": context.app.url,
                "Firebird": session.sql(_ENGINE)[0][0],
                "structure on disk": f"{ods}.{minor}",
                "page size": size,
                "pages in use": pages,
                "transactions since the oldest snapshot": following - oldest,
                "schema": migrate.current_version(session),
                "packages": session.generation,
            },
            "features": [
                {"feature": name, "version": row.version, "here": name in context.app.features}
                for name, row in features.rows(session).items()
            ],
        }

    return context.page("system.html", "System", **context.database.use(read))


def audit(context: Context) -> Response:
    """``/audit``."""
    before = context.request.args.get("before", "")
    if before and not (before.isdecimal() and len(before) < 19):
        raise BadRequest("before= must be the number of a line.")
    number = int(before) if before else None
    rows = context.database.use(lambda session: store.audit(session, before=number, most=PAGE + 1))
    following = rows[PAGE - 1].id if len(rows) > PAGE else None
    return context.page("audit.html", "Audit", rows=rows[:PAGE], next=following)
