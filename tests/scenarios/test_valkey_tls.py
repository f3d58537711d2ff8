"""Valkey behind TLS: whom a store believes, whom a server lets in, and what is said if not.

The server of the tests knows no TLS; it is reached through a door that knows nothing else, as behind a proxy.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from servers import valkey as servers
from stored import with_patience

from onejob import App, OnejobError
from onejob.testing import adrain

CERTIFICATES = Path(servers.__file__).with_name("certificates")
AUTHORITY = CERTIFICATES / "authority.pem"
"""Who signed the server's and the client's: made for tests, they guard nothing."""
SERVER = CERTIFICATES / "signed-server.pem"
CLIENT = CERTIFICATES / "signed-client.pem"
STRANGER = CERTIFICATES / "localhost.pem"
"""A certificate, with its key, that nobody but itself has signed."""
PATIENCE = 30.0


class Door:
    """Speaks TLS, and passes on what is said to the server behind it."""

    def __init__(self, port: int, *, asks: bool = False) -> None:
        """`asks`: who comes must show a certificate of the authority's."""
        self._behind = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(SERVER)
        if asks:
            self._context.load_verify_locations(AUTHORITY)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._visits: set[asyncio.Task[None]] = set()
        self.port = 0
        self.passed = 0

    async def open(self, port: int = 0) -> None:
        # TLS begins within the visit: who is turned away at the door has been here, too, and is shown out with the others.
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Show everybody out: a line left open would be found by whichever test comes next."""
        self._server.close()
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        if visits:
            await asyncio.wait(visits)
        await asyncio.sleep(0.01)  # transports hear of their end from the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        self._visits.add(visit)
        plain = writer.transport
        try:
            await writer.start_tls(self._context)
            back, forth = await asyncio.open_connection("127.0.0.1", self._behind)
            try:
                self.passed += 1
                await asyncio.gather(_pour(reader, forth), _pour(back, writer), return_exceptions=True)
            finally:
                forth.transport.abort()
        except (asyncio.CancelledError, OSError):
            pass  # we close, or the visitor is not let in
        finally:
            writer.transport.abort()
            plain.abort()
            self._visits.discard(visit)


async def _pour(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            target.write(data)
    finally:
        target.transport.abort()


@asynccontextmanager
async def doors(ports: Sequence[int], *, asks: bool = False) -> AsyncIterator[list[Door]]:
    """One for each server."""
    made = [Door(port, asks=asks) for port in ports]
    try:
        for door in made:
            await door.open()
        async with asyncio.timeout(PATIENCE):
            yield made
    finally:
        for door in made:
            await door.close()


def behind(door: Door, url: str, host: str = "localhost", **files: object) -> str:
    """The URL of a store that goes through a door."""
    namespace = url.partition("?")[2]
    more = "".join(f"&{name}={value}" for name, value in files.items())
    return f"valkeys://{host}:{door.port}?{namespace}{more}"


def port_of(url: str) -> int:
    return int(url.partition("?")[0].rpartition(":")[2])


async def work(url: str) -> str | None:
    """Enqueue, run and read a result."""
    async with App(url) as app:

        @app.task
        async def greet(name: str) -> str:
            return f"hello {name}"

        receipt = await greet.aenqueue("there")
        await adrain(app)
        return await receipt.aresult(timeout=PATIENCE)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_server_whose_certificate_a_private_authority_signed(valkey_url: str, host: str) -> None:
    async with doors([port_of(valkey_url)]) as [door]:
        assert await work(behind(door, valkey_url, host, tls_ca=AUTHORITY)) == "hello there"
        assert door.passed


@pytest.mark.parametrize("files", [{"tls_ca": STRANGER}, {}])
async def test_a_server_that_somebody_unknown_vouches_for_is_refused_at_once(
    valkey_url: str, files: dict[str, Path]
) -> None:
    async with doors([port_of(valkey_url)]) as [door]:
        began = time.monotonic()
        with pytest.raises(OnejobError, match=r"certificate is not trusted.*tls_ca=FILE names who signed it"):
            await work(with_patience(behind(door, valkey_url, **files)))
        assert time.monotonic() - began < 18, "before patience is over, on a busy machine, too"


async def test_any_server_is_believed_if_that_is_asked_for(valkey_url: str) -> None:
    async with doors([port_of(valkey_url)]) as [door]:
        assert await work(behind(door, valkey_url, tls_verify="never")) == "hello there"


async def test_a_server_that_wants_a_certificate_lets_in_who_has_one(valkey_url: str) -> None:
    async with doors([port_of(valkey_url)], asks=True) as [door]:
        url = behind(door, valkey_url, tls_ca=AUTHORITY, tls_cert=CLIENT, tls_key=CLIENT)
        assert await work(url) == "hello there"


@pytest.mark.parametrize("files", [{}, {"tls_cert": STRANGER, "tls_key": STRANGER}])
async def test_a_server_that_wants_a_certificate_refuses_who_has_none_or_a_strangers(
    valkey_url: str, files: dict[str, Path]
) -> None:
    async with doors([port_of(valkey_url)], asks=True) as [door]:
        with pytest.raises(OnejobError, match=r"\?tls_cert="):
            await work(f"{behind(door, valkey_url, tls_ca=AUTHORITY, **files)}&patience=3")
        assert not door.passed


async def test_a_certificate_that_cannot_be_read_is_named(valkey_url: str, tmp_path: Path) -> None:
    async with doors([port_of(valkey_url)]) as [door]:
        with pytest.raises(OnejobError, match=r"tls_ca=.*missing\.pem cannot be read"):
            await work(behind(door, valkey_url, tls_ca=tmp_path / "missing.pem"))
