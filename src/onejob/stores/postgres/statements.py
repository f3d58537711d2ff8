"""The statements of this store by name, in the schema that is configured."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from onejob.sql.files import SqlFiles

FILES = SqlFiles(Path(__file__).parent)
DEFAULT_SCHEMA = "onejob"
_QUALIFIED = re.compile(r"\bonejob\.(?=[a-z])")


@cache
def sql(name: str, schema: str = DEFAULT_SCHEMA) -> str:
    """The text of `FILE.STATEMENT`."""
    file, _, statement = name.partition(".")
    return in_schema(FILES.statements(file)[statement], schema)


def in_schema(text: str, schema: str) -> str:
    """A statement or script for tables in that schema."""
    return _QUALIFIED.sub(quoted(schema) + ".", text)


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
