"""The .sql files as data: one file per operation, one named statement per `-- name: promise` line."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_HEAD = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)


@cache
def statements(operation: str) -> dict[str, str]:
    """Read `sql/OPERATION.sql` and return its statements by name; a file's own headline has none."""
    text = resources.files("onejob.stores.sqlite").joinpath("sql", f"{operation}.sql").read_text("utf-8")
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    found: dict[str, str] = {}
    for head, end in zip(heads, ends, strict=True):
        body = text[head.start() : end].strip()
        if not all(line.startswith("--") for line in body.splitlines()):
            found[head[1]] = body
    return found


def read_all() -> None:
    """Read every file now: an upgrade in place must not mix this process's code with newer statements."""
    for file in resources.files("onejob.stores.sqlite").joinpath("sql").iterdir():
        statements(file.name.removesuffix(".sql"))


@cache
def migrations() -> list[str]:
    """The scripts that build the schema, in order; their number is the schema's version."""
    folder = resources.files("onejob.stores.sqlite").joinpath("migrations")
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return [file.read_text("utf-8") for file in files]
