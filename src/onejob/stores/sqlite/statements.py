"""The .sql files as data: one file per operation, one named statement per `-- name: promise` line.

What several statements of a file share has a name, too, and stands in them as `/* name */`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_HEAD = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)
_SHARED = re.compile(r"/\* ([a-z_]+) \*/")


@cache
def statements(operation: str) -> dict[str, str]:
    """Read `sql/OPERATION.sql` and return its statements by name; a file's own headline has none."""
    text = (_HERE / "sql" / f"{operation}.sql").read_text("utf-8")
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    found: dict[str, str] = {}
    for head, end in zip(heads, ends, strict=True):
        body = text[head.start() : end].strip()
        if not all(line.startswith("--") for line in body.splitlines()):
            found[head[1]] = _SHARED.sub(lambda shared: found[shared[1]], body)
    return found


def read_all() -> None:
    """Read every file now: an upgrade in place must not mix this process's code with newer statements."""
    for file in (_HERE / "sql").glob("*.sql"):
        statements(file.stem)


@cache
def migrations() -> list[str]:
    """The scripts that build the schema, in order; their number is the schema's version."""
    return [file.read_text("utf-8") for file in sorted((_HERE / "migrations").glob("*.sql"))]
