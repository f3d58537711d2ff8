"""The statements and migrations of this store, as its files have them."""

from __future__ import annotations

from pathlib import Path

from onejob.sql.files import SqlFiles

_files = SqlFiles(Path(__file__).parent)
statements = _files.statements
read_all = _files.read_all


def migrations() -> list[str]:
    """The scripts that build the schema, in order; their number is the schema's version."""
    return _files.migrations


def migration_names() -> list[str]:
    """Their names."""
    return _files.migration_names
