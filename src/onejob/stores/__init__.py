"""Where the stores are known by name: a URL goes in, a `JobStore` comes out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import millis
from onejob.store import JobStore

Clock = Callable[[], int]
MAX_PATIENCE = 3600.0
SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")
VALKEY = ("valkey://", "valkeys://", "valkey+cluster://", "valkeys+cluster://")
MEMORY = ("memory:", "sqlite://:memory:", "sqlite:///:memory:")


def open_store(url: str, *, clock: Clock | None = None) -> JobStore:
    """Make the store that a URL names; nothing is opened before its first use.

    `sqlite:///jobs.db` is relative to the current directory, `sqlite:////var/jobs.db` absolute, `memory:`
    lives and dies with the store. `?patience=SECONDS` bounds how long a call waits for a locked file.
    `postgresql://USER:PASSWORD@HOST/DATABASE` is a schema of a database, `?schema=onejob` if not said otherwise.
    `valkey://HOST:PORT` is a namespace of a Valkey server, `valkey+cluster://HOST:PORT` of a cluster.
    """
    if url.startswith(POSTGRES):
        from onejob.stores.postgres.store import PostgresStore

        return PostgresStore(url, clock=clock)
    if url.startswith(VALKEY):
        from onejob.stores.valkey.store import ValkeyStore

        return ValkeyStore(url, clock=clock)
    from onejob.stores.sqlite.store import SqliteStore

    return SqliteStore(_file(url), clock=clock, **_settings(url))


def check_url(url: str) -> str:
    """Return a URL that `open_store` takes; nothing is opened, and what a store needs is not imported."""
    if url.startswith(POSTGRES):
        from onejob.stores.postgres.address import parse

        parse(url)
        return url
    if url.startswith(VALKEY):
        from onejob.stores.valkey.address import parse

        parse(url)
        return url
    _file(url)
    _settings(url)
    return url


def has_tables(url: str) -> bool:
    """True if users can have tables of their own in the store that a URL names."""
    return not url.startswith(VALKEY)


def absolute(url: str) -> str:
    """The URL fit to be shown, and the same store's in whatever directory it is read."""
    if url.startswith((*POSTGRES, *VALKEY)) or _file(url) is None:
        return without_password(url)
    base, mark, query = url.partition("?")
    return without_password(f"{SQLITE}{os.path.abspath(base[len(SQLITE) :])}{mark}{query}")  # noqa: PTH100 - slow


def without_password(url: str) -> str:
    """The URL as it may be shown: whatever could be a password is starred out."""
    hidden = re.sub(r"(?<=://)([^:@/]*):.*@", r"\1:***@", url)
    hidden = re.sub(r"^([^:@/]+):[^/@]*@", r"\1:***@", hidden)
    return re.sub(r"(?i)(password|passwd|pwd|secret|token)=[^&#]*", r"\1=***", hidden)


def _file(url: str) -> str | None:
    """The path that a URL names; None is memory."""
    base = url.partition("?")[0]
    if base in MEMORY:
        return None
    if base.startswith(SQLITE) and len(base) > len(SQLITE):
        return _path(url, base[len(SQLITE) :])
    raise InvalidOption(
        f"Store URL {shown(without_password(url))} is not known: {_remedy(base)}use sqlite:///FILE (four slashes "
        "for an absolute path), postgresql://USER:PASSWORD@HOST/DATABASE, valkey://HOST:PORT, valkey+cluster://HOST:PORT or memory:."
    )


def _remedy(base: str) -> str:
    """What was probably meant; not where there may be a password in it."""
    from difflib import get_close_matches  # for mistakes only

    if re.match(r"postgres(ql)?\+[a-z0-9]+://", base):
        return "a store has a driver of its own, so write postgresql:// alone. Else "
    if found := re.match(r"redis(s?)(\+cluster)?://", base):
        return f"for a Redis server, too, write valkey{found[1]}{found[2] or ''}://. Else "
    scheme = base.partition("://")[0] if "://" in base else ""
    schemes = sorted({known.partition(":")[0] for known in (SQLITE, *POSTGRES, *VALKEY)})
    if scheme not in schemes and (close := get_close_matches(scheme, schemes, n=1, cutoff=0.75)):
        return f"did you mean {close[0]}://? Else "
    path = base[len("sqlite:") :].lstrip("/") if base.startswith("sqlite:") else base
    plain = path.endswith((".db", ".sqlite", ".sqlite3")) and ":" not in path and "@" not in path
    return f"did you mean {shown(SQLITE + path)}? Else " if plain else ""


def _settings(url: str) -> dict[str, float]:
    settings: dict[str, float] = {}
    for name, value in _questions(url):
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


def _questions(url: str) -> list[tuple[str, str]]:
    query = url.partition("?")[2]
    if not query:
        return []
    from urllib.parse import parse_qsl  # slow to load, and most URLs ask nothing

    return parse_qsl(query, keep_blank_values=True)


def _path(url: str, quoted: str) -> str:
    path = quoted
    if "%" in quoted:
        from urllib.parse import unquote  # slow to load

        path = unquote(quoted)
    if "\0" in path or not path.isprintable():
        raise InvalidOption(f"Store URL {shown(without_password(url))} names no file: its path is not text.")
    return path
