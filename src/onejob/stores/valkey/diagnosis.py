"""Why a server cannot be connected to, in its own words or the system's: glide only says that it took too long."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final

import msgspec

from onejob.core.errors import InvalidOption
from onejob.stores.valkey.address import Address, Tls

_LIMIT: Final = 1.0
_LASTING: Final = "out of range"
"""In what the server says to a database that it has not."""
_ALONE: Final = "cluster support disabled"
"""In what it says to who takes it for a cluster."""
_HUNG_UP: Final = "it hung up without a word: does it want TLS (valkeys://)?"


class Reason(msgspec.Struct, frozen=True):
    """What stands in the way."""

    said: str
    lasts: bool = False
    """The next try will hear the same."""


async def reason(address: Address) -> Reason | None:
    """Try to connect by hand, for at most a second or a quarter of the patience; None if that works."""
    limit = min(_LIMIT, address.patience / 4) / len(address.hosts)
    found = [await _try(address, host, port, limit) for host, port in address.hosts]
    return None if None in found else found[0]


async def _try(address: Address, host: str, port: int, limit: float) -> Reason | None:
    try:
        async with asyncio.timeout(limit):
            return await _greet(address, host, port)
    except TimeoutError:
        if address.tls is None or not await _speaks_plainly(host, port, limit):
            return Reason("it did not answer")
        return Reason("it speaks no TLS: write valkey://, without the s", lasts=True)
    except ssl.SSLCertVerificationError as error:
        return Reason(
            f"its certificate is not trusted, {error.verify_message}; ?tls_ca=FILE names who signed it",
            lasts=True,
        )
    except ssl.SSLError as error:
        return Reason(f"it refuses our TLS: {error.reason or error}", lasts=True)
    except OSError as error:
        return Reason(error.strerror or str(error))


async def _greet(address: Address, host: str, port: int) -> Reason | None:
    context = None if address.tls is None else _context(address.tls)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        for command in _greetings(address):
            writer.write(command)
            answer = await reader.readline()
            if not answer:
                return Reason(_HUNG_UP)
            if answer.startswith(b"-"):
                said = answer[1:].decode(errors="replace").strip()
                if _ALONE in said:
                    scheme = "valkey://" if address.tls is None else "valkeys://"
                    return Reason(f"it is a single server and no cluster: write {scheme}", lasts=True)
                return Reason(said, lasts=_LASTING in said)
        return None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _speaks_plainly(host: str, port: int, limit: float) -> bool:
    """True for a server to whom a handshake was no more than a line that does not end."""
    try:
        async with asyncio.timeout(limit):
            return await _greet(Address(hosts=((host, port),)), host, port) != Reason(_HUNG_UP)
    except (TimeoutError, OSError):
        return False


def _greetings(address: Address) -> list[bytes]:
    commands = [["PING"]]
    if address.password:
        commands.insert(0, ["AUTH", *([address.user] if address.user else []), address.password])
    if address.database:
        commands.append(["SELECT", str(address.database)])
    if address.cluster:
        commands.append(["CLUSTER", "INFO"])  # last: of its answer we read but one line
    return [_encoded(command) for command in commands]


def _encoded(command: list[str]) -> bytes:
    words = [word.encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:  # which errors of the TLS library are, too
        raise InvalidOption(
            f"What the store's URL names for TLS cannot be used ({error}): correct it."
        ) from error
    if not tls.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
