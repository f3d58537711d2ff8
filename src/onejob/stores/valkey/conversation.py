"""What is said on a connection to Valkey, without I/O: commands to bytes, bytes to replies, through TLS where it is asked for.

Whoever drives the socket, an event loop (`connection`) or a thread (`thread_connection`), sends and receives the bytes.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from onejob.core.errors import InvalidOption, MissingDriver, OnejobError
from onejob.stores.valkey.address import Address, Tls
from onejob.stores.valkey.failures import LineLost, ServerError, misdirected, passes

Word = str | bytes
Words = Sequence[Word]
Talk = Generator[bytes, bytes, "Host"]
"""Gives what is to be sent, and takes what came back, until it knows whom it talks to."""

CHUNK: Final = 65_536
"""Bytes that are received at once, at most. For more, memory would be had from the system and given back with every call."""
_NAME: Final = "onejob"
"""What `CLIENT LIST` shows of us."""
_MORE: Final = object()
_LOGIN: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_NO_TLS: Final = "it speaks no TLS: write valkey://, without the s"
_REFUSES_TLS: Final = "it refuses our TLS"
NO_VALKEY: Final = (
    "it answered in no words of Valkey's: is it another server, or does it want TLS (valkeys://)?"
)


class Host(msgspec.Struct, frozen=True):
    """What a server says of itself when it is greeted."""

    leads: bool
    """It takes writes, as far as it knows."""
    in_cluster: bool


class Conversation:
    """One end of a connection. It belongs to whoever drives the socket."""

    __slots__ = ("_pack", "_reader", "_tunnel")

    def __init__(self, tunnel: Tunnel | None = None) -> None:
        library = driver()
        self._pack = library.pack_command
        self._reader = library.Reader(replyError=ServerError, notEnoughData=_MORE)
        self._tunnel = tunnel

    def say(self, words: Words) -> bytes:
        """The bytes of a command."""
        data = self._pack(tuple(words))
        if self._tunnel is None:
            return data
        try:
            return self._tunnel.seal(data)
        except ssl.SSLError as error:
            raise LineLost(_refusal(error)) from None

    def hear(self, data: bytes) -> list[Any]:
        """The replies that these bytes complete; what the server refused is a `ServerError` among them."""
        try:
            if self._tunnel is not None:
                data = self._tunnel.unseal(data)
            self._reader.feed(data)
            replies: list[Any] = []
            while (reply := self._reader.gets()) is not _MORE:
                replies.append(reply)
        except driver().ProtocolError:
            raise LineLost(NO_VALKEY, sent=True) from None
        except ssl.SSLError as error:
            raise LineLost(_refusal(error), sent=True) from None
        return replies

    def begin(self, address: Address) -> Talk:
        """Shake hands, log in and choose the database. Raises what will be so next time, too, as an `OnejobError`."""
        if self._tunnel is not None:
            yield from self._tunnel.dig(address)
        commands = _greeting(address)
        to_send, replies = b"".join([self.say(command) for command in commands]), list[Any]()
        while len(replies) < len(commands):
            heard = yield to_send
            try:
                replies += self.hear(heard)
            except LineLost as lost:
                raise _greeted_so(address, lost) from None
            to_send = b""
        for reply in replies:
            if isinstance(reply, ServerError):
                raise reply if passes(reply) or reply.code in _LOGIN else misdirected(address, reply.text)
        told = dict(zip(replies[0][::2], replies[0][1::2], strict=False))
        return Host(leads=told.get(b"role") == b"master", in_cluster=told.get(b"mode") == b"cluster")


class Tunnel:
    """TLS around what is said."""

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def __init__(self, tls: Tls, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context(tls).wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def dig(self, address: Address) -> Generator[bytes, bytes, None]:
        """Shake hands. What is left to be sent goes along with what is said first."""
        heard = b""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                received = yield self._outgoing.read()
                heard = heard or received
                if heard.startswith(b"-"):
                    raise speaks_no_tls(address) from None
                self._incoming.write(received)
            except ssl.SSLError as error:
                raise misdirected(address, _refusal(error)) from None
            else:
                return

    def seal(self, data: bytes) -> bytes:
        """Bytes as they go out."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        return self._outgoing.read()

    def unseal(self, data: bytes) -> bytes:
        """Bytes as they were said."""
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            while part := self._tls.read(CHUNK):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)


@cache
def driver() -> Any:
    """The module that packs commands and reads replies, imported with the first connection."""
    try:
        import libvalkey
    except ImportError as error:
        raise MissingDriver("Valkey", "libvalkey", "valkey") from error
    return libvalkey


def speaks_no_tls(address: Address) -> OnejobError:
    """The error for a server to whom a handshake is no more than a line that does not end."""
    return misdirected(address, _NO_TLS)


def _greeting(address: Address) -> list[list[str]]:
    login = ["AUTH", address.user or "default", address.password] if address.password else []
    commands = [["HELLO", "2", *login, "SETNAME", _NAME]]
    if address.database:
        commands.append(["SELECT", str(address.database)])
    return commands


def _greeted_so(address: Address, lost: LineLost) -> Exception:
    """What is heard instead of a greeting; no call has been sent yet."""
    said = str(lost)
    if said.startswith(
        _REFUSES_TLS
    ):  # a server may ask for a certificate, and refuse us only once we have spoken
        return misdirected(address, f"{said}; ?tls_cert=FILE&tls_key=FILE name ours, if it wants one")
    return LineLost(said)


def _refusal(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted, {error.verify_message}; ?tls_ca=FILE names who signed it"
    return f"{_REFUSES_TLS}: {error.reason or error}"


@cache
def _context(tls: Tls) -> ssl.SSLContext:
    _check_files(tls)
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


def _check_files(tls: Tls) -> None:
    for name, file in (("tls_ca", tls.ca), ("tls_cert", tls.cert), ("tls_key", tls.key)):
        if file is None:
            continue
        try:
            with open(file, "rb"):  # noqa: PTH123 - whether it can be read is all we ask
                pass
        except OSError as error:
            raise InvalidOption(
                f"{name}={file} cannot be read ({error.strerror}): correct the store's URL."
            ) from error
