"""Operations on an asyncpg connection: statements by name, prepared once per connection, driven to the end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from onejob.core.errors import MissingDriver, OnejobError, shown
from onejob.stores.postgres.address import TLS_FILES, Address
from onejob.stores.postgres.statements import sql
from onejob.stores.postgres.steps import Row, Steps

T = TypeVar("T")
LOCK_TIMEOUT: Final = 250
"""Milliseconds that one of our statements waits for a lock; who holds one for longer is in a user's transaction."""
NO_TLS: Final = "rejected SSL upgrade"
"""What asyncpg says of a server without TLS, and of anybody who answers what no server does."""
BEGIN: Final = "begin isolation level read committed"
_IDLE_IN_TRANSACTION: Final = 60_000
_CLOSE: Final = 2.0
_CONNECT: Final = 10.0
_NO_FILE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES})
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5_000}


class Prepared(Protocol):
    """What we use of an `asyncpg.prepared_stmt.PreparedStatement`."""

    async def fetch(self, *parameters: Any) -> list[Any]: ...


class Connection(Protocol):
    """What we use of an `asyncpg.Connection`."""

    async def execute(self, query: str, *parameters: Any, timeout: float | None = None) -> str: ...
    async def fetch(self, query: str, *parameters: Any, timeout: float | None = None) -> list[Any]: ...
    async def prepare(self, query: str) -> Prepared: ...
    async def add_listener(self, channel: str, callback: Callable[[object, int, str, str], None]) -> None: ...
    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def get_server_pid(self) -> int: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...


class Link:
    """A connection with our statements on it."""

    __slots__ = ("_pooled", "_prepared", "_schema", "begin", "committed", "connection", "idle_since")

    def __init__(
        self, connection: Connection, address: Address, settings: Mapping[str, str] | None = None
    ) -> None:
        """`settings` beside those of all our connections."""
        self.connection = connection
        self._schema = address.schema
        self._pooled = address.pooled
        self._prepared: dict[str, Prepared] = {}
        self.idle_since = time.monotonic()
        self.committed = False
        """The operation that runs on it, or ran last, had statements that committed by themselves."""
        # A pooler gives every transaction another session: what a session should keep is said in each.
        self.begin = f"{BEGIN}; {_said('set local', address, settings)}" if address.pooled else BEGIN

    async def fetch(self, name: str, parameters: tuple[Any, ...]) -> list[Row]:
        """Run a statement of ours and return its rows."""
        if self._pooled:
            rows = await self._fetch_pooled(sql(name, self._schema), parameters)
        else:
            prepared = self._prepared.get(name)
            if prepared is None:
                prepared = await self.connection.prepare(sql(name, self._schema))
                self._prepared[name] = prepared
            rows = await prepared.fetch(*parameters)
        return list(map(tuple, rows)) if rows else rows  # asyncpg's records are no sequences to `match`

    async def execute(self, text: str) -> str:
        """Run plain SQL without parameters and return its status."""
        return await self.connection.execute(text)

    async def commit(self) -> None:
        """End the transaction that is open on it, and make sure that it counts."""
        status = await self.execute("commit")
        if status != "COMMIT":
            # The server answers so when a statement failed before, and the operation went on as if it had not.
            raise OnejobError(
                "A transaction was rolled back by the server, though no statement of it was seen to fail."
            )

    async def roll_back(self) -> None:
        """End it because of an error, which is on its way and is not to be hidden by another."""
        if not self.connection.is_closed():
            with suppress(Exception):
                await self.execute("rollback")

    def is_sound(self) -> bool:
        """True if another operation may use it."""
        return not (self.connection.is_closed() or self.connection.is_in_transaction())

    async def close(self) -> None:
        """Cancel what still runs on it, if the server can be told, and close it; never raises."""
        with suppress(Exception):
            await self.connection.close(timeout=_CLOSE)

    def terminate(self) -> None:
        """Drop it at once, without a word."""
        self.connection.terminate()

    async def _fetch_pooled(self, text: str, parameters: tuple[Any, ...]) -> list[Any]:
        """A statement outside of a transaction has one of its own: else it would wait for locks without an end."""
        if self.connection.is_in_transaction():
            return await self.connection.fetch(text, *parameters)
        await self.execute(self.begin)
        try:
            rows = await self.connection.fetch(text, *parameters)
        except Exception:
            await self.roll_back()
            raise
        await self.commit()
        return rows


async def connect(address: Address, *, settings: Mapping[str, str] | None = None) -> Link:
    """Open a connection with our settings, which are set one by one: poolers refuse them at the start."""
    connection = await _opened(address)
    try:
        _keep_alive(connection)
        if not address.pooled:
            await connection.execute(_said("set", address, settings), timeout=_CONNECT)
    except BaseException:
        connection.terminate()
        raise
    return Link(connection, address, settings)


async def _opened(address: Address) -> Connection:
    try:
        opened = await driver().connect(
            **address.arguments,
            timeout=min(_CONNECT, address.patience),
            statement_cache_size=0 if address.pooled else 256,
            max_cached_statement_lifetime=0,
            command_timeout=None,
        )
    except ConnectionError as error:
        if NO_TLS in str(error) and _does_without_tls(address):
            # While a server is down, whoever dials a port of this machine may be put through to himself, and hear an echo.
            raise ConnectionResetError("whoever answers there is no PostgreSQL server") from error
        raise
    except OSError as error:
        if error.errno in _NO_FILE and (refusal := _unreadable(address)) is not None:
            raise refusal from error
        raise
    return cast("Connection", opened)


def _unreadable(address: Address) -> OnejobError | None:
    """What to raise of a file for TLS that is not there: the driver does not say which, and the next try changes nothing."""
    for name in TLS_FILES:
        given, variable = address.tls_files.get(name), f"PG{name.upper()}"
        path = given or os.environ.get(variable)
        if path and not (Path(path).is_file() and os.access(path, os.R_OK)):
            where = f"?{name}= in the store's URL" if given else f"the environment's {variable}"
            return OnejobError(f"The file {shown(path)} cannot be read: correct {where}, or put it there.")
    return None


def _does_without_tls(address: Address) -> bool:
    """True if no server can refuse TLS to us: we take it where there is some."""
    return (address.sslmode or os.environ.get("PGSSLMODE") or "prefer") == "prefer"


async def drive(link: Link, steps: Steps[T], *, joined: bool = False) -> T:
    """Run an operation to its end, and commit it; `joined`: inside a transaction that is somebody else's to end.

    What the database raises is raised in the operation, at the statement that it asked for.
    """
    begun = link.committed = False
    try:
        statement = next(steps)
        while True:
            name = statement.name
            if name == "begin":
                if not (begun or joined):
                    await link.execute(link.begin)
                    begun = True
                statement = steps.send([])
                continue
            try:
                rows = await link.fetch(name, statement.parameters)
            except Exception as error:
                statement = steps.throw(error)
            else:
                link.committed = link.committed or not begun
                statement = steps.send(rows)
    except StopIteration as end:
        if begun:
            await link.commit()
        return end.value
    except asyncio.CancelledError:
        steps.close()
        raise
    except BaseException:
        if begun:
            await link.roll_back()
        raise


@cache
def driver() -> Any:
    """The asyncpg module, imported with the first connection."""
    try:
        import asyncpg  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise MissingDriver("PostgreSQL", "asyncpg", "postgres") from error
    return asyncpg


def _said(how: str, address: Address, settings: Mapping[str, str] | None) -> str:
    """The settings of a connection as SQL; `how`: for a session or for a transaction."""
    chosen: dict[str, object] = {
        "lock_timeout": LOCK_TIMEOUT,
        "statement_timeout": round(address.statement_timeout * 1000),
        "idle_in_transaction_session_timeout": _IDLE_IN_TRANSACTION,
        # Who sets another default means his own transactions: our statements are written for this one.
        **({"default_transaction_isolation": "read committed"} if how == "set" else {}),
        "jit": "off",  # its compilation takes longer than any of our statements
        **(settings or {}),
    }
    return "; ".join(f"{how} {name} = '{value}'" for name, value in chosen.items())


def _keep_alive(connection: Connection) -> None:
    """Find out within a minute that the other end is gone, and within seconds if it owes us an answer."""
    transport = cast("asyncio.BaseTransport | None", getattr(connection, "_transport", None))
    raw = None if transport is None else transport.get_extra_info("socket")
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
