"""Where the stores are known by name: a URL goes in, a `JobStore` comes out."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

from onejob.core.errors import InvalidOption, shown
from onejob.store import JobStore

Clock = Callable[[], int]
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
        return SqliteStore(unquote(base[len("sqlite:///") :]), clock=clock, **_settings(url, query))
    raise InvalidOption(
        f"Store URL {shown(without_password(url))} is not known: use sqlite:///FILE (four slashes for an "
        "absolute path) or memory:."
    )


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0]}:***@{place}").geturl()


def _settings(url: str, query: str) -> dict[str, float]:
    settings: dict[str, float] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "patience" or not value.replace(".", "", 1).isdigit():
            raise InvalidOption(
                f"Store URL {shown(without_password(url))} has {shown(f'{name}={value}')}: "
                "only patience=SECONDS is known."
            )
        settings[name] = float(value)
    return settings
