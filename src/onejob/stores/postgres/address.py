"""A PostgreSQL URL taken apart: what the driver is given, what is ours, and what may be shown of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from onejob import urls
from onejob.core.errors import InvalidOption, shown
from onejob.stores.postgres.statements import DEFAULT_SCHEMA

SCHEMES: Final = ("postgresql://", "postgres://")
PATIENCE: Final = 10.0
POOL: Final = 8
MAX_POOL: Final = 100
DEFAULT_PORT: Final = 5432

_KIND: Final = "PostgreSQL"

_FORMS: Final = {
    "schema": "NAME",
    "pool": "CONNECTIONS",
    "patience": "SECONDS",
    "statement_timeout": "SECONDS",
    "pooler": "transaction",
    "migrate": "auto|never",
    "application_name": "NAME",
}
_PLACE: Final = ("host", "port", "user", "password", "dbname", "database")
_DRIVER: Final = (
    "passfile",
    "service",
    "sslmode",
    "sslcert",
    "sslkey",
    "sslrootcert",
    "sslcrl",
    "sslpassword",
    "sslnegotiation",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "target_session_attrs",
    "krbsrvname",
    "gsslib",
)
TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_OPTIONS: Final = "options"
_SCHEMA = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,47}")


class Address(msgspec.Struct, frozen=True):
    """Where a store is, and how it is to be used."""

    arguments: dict[str, Any]
    """What `asyncpg.connect` is given; has the password in it."""
    place: str
    """Host, port and database, as messages name them."""
    schema: str = DEFAULT_SCHEMA
    pool: int = POOL
    """Connections for calls at most, as many again for open transactions, and a quarter of it for reading."""
    patience: float = PATIENCE
    statement_timeout: float = PATIENCE
    pooled: bool = False
    """There is a pooler before the server that gives each transaction another session."""
    migrates: bool = True
    sslmode: str | None = None
    """None: as the environment says, or else `prefer`."""
    tls_files: dict[str, str] = {}
    """Files that the URL names, by parameter."""

    def __repr__(self) -> str:
        return f"Address({self.place})"


def parse(url: str) -> Address:
    """Take a URL apart; nothing is looked up or opened. No message of ours shows what could be a password."""
    scheme = next((known for known in SCHEMES if url.startswith(known)), None)
    if scheme is None:
        raise InvalidOption("A PostgreSQL store's URL starts with postgresql:// or postgres://.")
    parts = urls.take_apart(_KIND, url[len(scheme) :], _FORMS, (*_PLACE, *_DRIVER, _OPTIONS))
    given = parts.given
    arguments: dict[str, Any] = {
        "user": parts.user or given.get("user"),
        "password": given.get("password") if parts.password is None else parts.password,
        "database": parts.path or given.get("dbname") or given.get("database"),
        **_hosts(parts.hosts or given.get("host", ""), given.get("port", ""), of_service="service" in given),
    }
    rest = {name: value for name, value in given.items() if name in _DRIVER}
    if rest:
        arguments["dsn"] = f"postgresql://?{urlencode(rest)}"
    settings = {"application_name": given.get("application_name", "onejob")}
    if _OPTIONS in given:
        settings[_OPTIONS] = given[_OPTIONS]
    patience = urls.seconds("patience", given, PATIENCE)
    return Address(
        arguments={
            **{name: value for name, value in arguments.items() if value is not None},
            "server_settings": settings,
        },
        place=_place(arguments),
        schema=_schema(given),
        pool=_pool(given),
        patience=patience,
        statement_timeout=urls.seconds("statement_timeout", given, patience),
        pooled=urls.one_of("pooler", given, ("transaction",)) is not None,
        migrates=urls.one_of("migrate", given, ("auto", "never")) != "never",
        sslmode=given.get("sslmode"),
        tls_files={name: given[name] for name in TLS_FILES if name in given},
    )


def _hosts(text: str, ports: str, *, of_service: bool) -> dict[str, list[Any]]:
    """Hosts and their ports, for a list `a:1,b:2`; what is left out is for the service, $PGHOST and $PGPORT to say."""
    if not text:
        return {} if not ports else {"host": ["localhost"], "port": [urls.port(_KIND, ports)]}
    hosts: list[str] = []
    found: list[int | None] = []
    ports = ports or ("" if of_service else os.environ.get("PGPORT", ""))
    others = ports.split(",") if ports else []
    for number, part in enumerate(text.split(",")):
        match = None if part.startswith("/") else urls.host_and_port(part)
        if match is None and not part.startswith("/"):
            raise InvalidOption(
                "The PostgreSQL store's URL has a host or port that is none: HOST:PORT, [IPV6]:PORT or host=/DIRECTORY; "
                "percent-encode what is special in the password."
            )
        port = match[1] if match is not None else None
        if port is None and others:
            port = others[number if number < len(others) else -1]
        hosts.append(part if match is None else match[0])
        found.append(urls.port(_KIND, port) if port else None)
    if of_service and not any(found):
        return {"host": hosts}
    return {"host": hosts, "port": [port or DEFAULT_PORT for port in found]}


def _place(arguments: Mapping[str, Any]) -> str:
    hosts, ports = arguments.get("host"), arguments.get("port")
    if hosts and ports:
        where = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
    else:
        where = ",".join(hosts) if hosts else "(default host)"
    return f"{where}/{arguments['database'] or '(default database)'}"


def _schema(given: Mapping[str, str]) -> str:
    schema = given.get("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise InvalidOption(
            f"schema={shown(schema)} is no name for a schema: 1 to 48 of a-z, 0-9 and _, not starting with a digit or pg_."
        )
    return schema


def _pool(given: Mapping[str, str]) -> int:
    text = given.get("pool", str(POOL))
    if not text.isdecimal() or not 1 <= int(text) <= MAX_POOL:
        raise InvalidOption(f"pool={shown(text)} must be a whole number of connections from 1 to {MAX_POOL}.")
    return int(text)
