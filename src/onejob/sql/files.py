"""The .sql files as data: one file per operation, one named statement per `-- name: promise` line.

What several statements of a file share has a name, too, and stands in them as `/* name */`; what another file has, as
`/* file.name */`.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

_HEAD = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)
_SHARED = re.compile(r"/\* (?:([a-z_]+)\.)?([a-z_]+) \*/")


class SqlFiles:
    """The statements (`sql/OPERATION.sql`) and migrations of one store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, dict[str, str]] = {}

    def statements(self, operation: str) -> dict[str, str]:
        """The statements of `sql/OPERATION.sql` by name; a file's own headline has none."""
        found = self._read.get(operation)
        if found is None:
            text = (self._folder / "sql" / f"{operation}.sql").read_text("utf-8")
            found = self._read[operation] = self._named(text)
        return found

    def read_all(self) -> None:
        """Read every file now: an upgrade in place must not mix this process's code with newer statements."""
        for file in (self._folder / "sql").glob("*.sql"):
            self.statements(file.stem)

    def _named(self, text: str) -> dict[str, str]:
        heads = list(_HEAD.finditer(text))
        ends = [*(head.start() for head in heads[1:]), len(text)]
        found: dict[str, str] = {}

        def shared(match: re.Match[str]) -> str:
            return (self.statements(match[1]) if match[1] else found)[match[2]]

        for head, end in zip(heads, ends, strict=True):
            body = text[head.start() : end].strip()
            if not all(line.startswith("--") for line in body.splitlines()):
                found[head[1]] = _SHARED.sub(shared, body)
        return found

    @cached_property
    def migrations(self) -> list[str]:
        """The scripts that build the schema, in order; their number is the schema's version."""
        return [file.read_text("utf-8") for file in sorted((self._folder / "migrations").glob("*.sql"))]

    @cached_property
    def migration_names(self) -> list[str]:
        """The names of those scripts."""
        return [file.stem for file in sorted((self._folder / "migrations").glob("*.sql"))]
