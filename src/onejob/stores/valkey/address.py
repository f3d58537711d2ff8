"""A Valkey URL taken apart: where the servers are, how to get in, what is ours, and what may be shown of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from onejob import urls
from onejob.core.errors import InvalidOption, shown

PATIENCE: Final = 10.0
DEFAULT_NAMESPACE: Final = "onejob"
DEFAULT_PORT: Final = 6379
SCHEMES: Final = ("valkey://", "valkeys://", "valkey+cluster://", "valkeys+cluster://")

_KIND: Final = "Valkey"
_FORMS: Final = {
    "namespace": "NAME",
    "patience": "SECONDS",
    "tls_ca": "FILE",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "tls_verify": "always|never",
}
_TLS: Final = ("tls_ca", "tls_cert", "tls_key", "tls_verify")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_DATABASE = re.compile(r"[0-9]{1,5}")
_CLUSTER = re.compile(r"[?&]cluster=")


class Tls(msgspec.Struct, frozen=True):
    """How a connection is encrypted, and who is believed. Files are PEM, and read when a connection is made."""

    ca: str | None = None
    """Whose word for a server counts; None: those that the system trusts."""
    cert: str | None = None
    """What we show of ourselves, and the key to it."""
    key: str | None = None
    verifies: bool = True


class Address(msgspec.Struct, frozen=True):
    """Where a store is, and how it is to be used."""

    hosts: tuple[tuple[str, int], ...]
    """A server and its replicas, whichever of them leads just now; or any nodes of a cluster."""
    cluster: bool = False
    database: int = 0
    user: str | None = None
    password: str | None = None
    tls: Tls | None = None
    namespace: str = DEFAULT_NAMESPACE
    patience: float = PATIENCE

    @property
    def place(self) -> str:
        """Hosts, ports and database, as messages name them."""
        where = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{where} (cluster)" if self.cluster else f"{where}/{self.database}"

    def __repr__(self) -> str:
        return f"Address({self.place})"


def parse(url: str) -> Address:
    """Take a URL apart; nothing is looked up or opened. No message of ours shows what could be a password."""
    scheme = next((known for known in SCHEMES if url.startswith(known)), None)
    if scheme is None:
        raise InvalidOption(
            "A Valkey store's URL starts with valkey:// or valkeys:// (TLS), a cluster's with valkey+cluster:// or "
            "valkeys+cluster://."
        )
    if _CLUSTER.search(url):
        raise InvalidOption(
            "A cluster is told from a single server by the start of the URL, not by a parameter: write "
            "valkey+cluster://HOST:PORT,HOST:PORT, or valkeys+cluster:// for TLS."
        )
    parts = urls.take_apart(_KIND, url[len(scheme) :], _FORMS)
    cluster = "+cluster" in scheme
    _check_login(parts)
    return Address(
        hosts=tuple(_host(part) for part in parts.hosts.split(",")),
        cluster=cluster,
        database=_database(parts.path, cluster=cluster),
        user=parts.user or None,
        password=parts.password,
        tls=_tls(parts.given, encrypted=scheme.startswith("valkeys")),
        namespace=_namespace(parts.given),
        patience=urls.seconds("patience", parts.given, PATIENCE),
    )


def _check_login(parts: urls.Parts) -> None:
    if parts.user and not parts.password:
        raise InvalidOption(
            f"The Valkey store's URL has a user ({shown(parts.user)}) without a password: write USER:PASSWORD@HOST, or "
            ":PASSWORD@HOST for the default user."
        )


def _host(text: str) -> tuple[str, int]:
    match = urls.host_and_port(text)
    if match is None:
        raise InvalidOption(
            "The Valkey store's URL has a host or port that is none: HOST:PORT or [IPV6]:PORT, several with commas between "
            "them; percent-encode what is special in the password."
        )
    host, port = match
    return host, DEFAULT_PORT if port is None else urls.port(_KIND, port)


def _database(path: str, *, cluster: bool) -> int:
    if not path:
        return 0
    if cluster:
        raise InvalidOption(
            f"A cluster has no databases to choose from, but the Valkey store's URL ends in {shown('/' + path)}: leave it out, "
            "and keep stores apart by ?namespace=NAME."
        )
    if not _DATABASE.fullmatch(path):
        raise InvalidOption(
            f"The Valkey store's URL has the database {shown(path)}: it is a number, mostly 0 to 15."
        )
    return int(path)


def _namespace(given: Mapping[str, str]) -> str:
    namespace = given.get("namespace", DEFAULT_NAMESPACE)
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidOption(
            f"namespace={shown(namespace)} is no name for a namespace: 1 to 40 of A-Z, a-z, 0-9, _, . and -."
        )
    return namespace


def _tls(given: Mapping[str, str], *, encrypted: bool) -> Tls | None:
    asked = [name for name in _TLS if name in given]
    if not encrypted:
        if asked:
            raise InvalidOption(
                f"The Valkey store's URL has {asked[0]}=…, but nothing is encrypted with that start: write valkeys:// or "
                "valkeys+cluster://."
            )
        return None
    if ("tls_cert" in given) != ("tls_key" in given):
        raise InvalidOption("tls_cert=FILE and tls_key=FILE go together: the key is the certificate's.")
    empty = next((name for name in asked if not given[name]), None)
    if empty is not None:
        raise InvalidOption(
            f"The Valkey store's URL has an empty {empty}=: it is {_FORMS[empty]}, or left out."
        )
    return Tls(
        ca=given.get("tls_ca"),
        cert=given.get("tls_cert"),
        key=given.get("tls_key"),
        verifies=urls.one_of("tls_verify", given, ("always", "never")) != "never",
    )
