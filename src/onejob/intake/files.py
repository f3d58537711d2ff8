"""Which SQLite files an intake may open: not the store's own, which a second SQLite library could corrupt, and none that
is not there, which SQLite would make.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from onejob.core.errors import InvalidOption

if TYPE_CHECKING:
    from sqlalchemy import URL

    from onejob.intake.sources import Database

_SQLITE: Final = "sqlite"


def refuse_own_file(intake: str, database: Database, store: str) -> None:
    """Raise if a database is the file in which the store is; `store` is its URL."""
    theirs, ours = _file(database if isinstance(database, str) else str(database.url)), _file(store)
    if theirs is not None and ours is not None and _same(theirs, ours):
        raise InvalidOption(
            f"Intake {intake!r} names the store's own file with database=…, which two SQLite libraries in one process "
            "can corrupt: leave database=… out, and its tables are read through the store."
        )


def refuse_missing_file(url: URL) -> None:
    """Raise if a URL names a file that does not exist; one that says itself how to open it, with `mode=`, may."""
    from urllib.parse import unquote

    path = url.database
    if url.get_backend_name() != _SQLITE or not path or path == ":memory:" or "mode" in url.query:
        return
    if "uri" in url.query and path.startswith("file:"):
        path = unquote(path.removeprefix("file:"))
    if not Path(path).exists():
        raise InvalidOption(
            f"There is no file {str(Path(path).absolute())!r}, which database=… names: correct the path, or make the "
            "database first."
        )


def _file(url: str) -> Path | None:
    """The file that a URL names; None if it names none."""
    from urllib.parse import unquote

    scheme, mark, rest = url.partition(":///")
    path = unquote(rest.partition("?")[0]).removeprefix("file:")
    if not mark or scheme.partition("+")[0] != _SQLITE or path in ("", ":memory:"):
        return None
    return Path(path)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there yet
        return one.resolve() == other.resolve()
