"""Where the stores are known by name: a URL goes in, a `JobStore` comes out."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import millis
from onejob.store import JobStore

Clock = Callable[[], int]
MAX_PATIENCE = 3600.0
MEMORY = ("memory:", "sqlite://:memory:", "sqlite:///:memory:")


def open_store(url: str, *, clock: Clock | None = None) -> JobStore:
    """Make the store that a URL names; nothing is opened before its first use.

    `sqlite:///jobs.db` is relative to the current directory, `sqlite:////var/jobs.db` absolute, `memory:`
    lives and dies with the store. `?patience=SECONDS` bounds how long a call waits for a locked file.
    """
    from onejob.stores.sqlite.store import SqliteStore

    base, _, query = url.partition("?")
    if base in MEMORY:
        return SqliteStore(None, clock=clock, **_settings(url, query))
    if base.startswith("sqlite:///") and len(base) > len("sqlite:///"):
        return SqliteStore(_path(url, base[len("sqlite:///") :]), clock=clock, **_settings(url, query))
    raise InvalidOption(
        f"Store URL {shown(without_password(url))} is not known: use sqlite:///FILE (four slashes for an "
        "absolute path) or memory:."
    )


def without_password(url: str) -> str:
    """The URL as it may be shown: whatever could be a password is starred out."""
    hidden = re.sub(r"(?<=://)([^:@/]*):.*@", r"\1:***@", url)
    hidden = re.sub(r"^([^:@/]+):[^/@]*@", r"\1:***@", hidden)
    return re.sub(r"(?i)(password|passwd|pwd|secret|token)=[^&#]*", r"\1=***", hidden)


def _settings(url: str, query: str) -> dict[str, float]:
    settings: dict[str, float] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        try:
            seconds = millis("patience", float(value), minimum=1) / 1000 if name == "patience" else None
        except ValueError:
            seconds = None
        if seconds is None or seconds > MAX_PATIENCE:
            raise InvalidOption(
                f"Store URL {shown(without_password(url))} has {shown(f'{name}={value}')}: only "
                f"patience=SECONDS is known, of at most {MAX_PATIENCE:g}."
            )
        settings[name] = seconds
    return settings


def _path(url: str, quoted: str) -> str:
    path = unquote(quoted)
    if "\0" in path or not path.isprintable():
        raise InvalidOption(f"Store URL {shown(without_password(url))} names no file: its path is not text.")
    return path
