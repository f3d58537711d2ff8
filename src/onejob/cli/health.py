"""The health check of `onejob worker`: an HTTP answer on 127.0.0.1, and a file that is there while all is well.

It lives on a thread of its own, so that a handler that blocks the event loop cannot silence it. What it serves
is one small JSON object and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click

from onejob.background import BackgroundLoop
from onejob.logs import event, logger

Report: TypeAlias = Mapping[str, Any]
"""What is said about a worker; `alive` is the answer, the rest is for people."""

MAX_REQUEST = 4_096
MAX_CONNECTIONS = 32
PATIENCE = 3.0
"""Seconds a client has to ask, and again to take the answer."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """Where a health check is to be had; a port of 0 is none."""

    port: int = 0
    file: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.port or self.file)


class HealthCheck:
    """Looks at a worker when asked, and every so many seconds for the file."""

    def __init__(self, options: HealthOptions, look: Callable[[], Report], every: float) -> None:
        self._options = options
        self._look = look
        self._every = every
        self._server: asyncio.Server | None = None
        self._connections = 0
        self._file_trouble = False

    def __enter__(self) -> HealthCheck:
        if self._options.file is not None:
            _try_to_write_beside(self._options.file)
        if self._options:
            self._loop = BackgroundLoop()
            try:
                self._loop.call(self._open())
            except OSError as error:
                self._loop.stop()
                # asyncio's own text repeats the address.
                why = os.strerror(error.errno) if error.errno else str(error)
                raise click.ClickException(
                    f"The health check cannot use 127.0.0.1:{self._options.port}: {why}; "
                    "give --health-port another number."
                ) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._options:
            self._loop.call(self._close())
            self._loop.stop()
            if self._options.file is not None:
                self._options.file.unlink(missing_ok=True)

    async def _open(self) -> None:
        if self._options.port:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self._options.port, limit=MAX_REQUEST, backlog=MAX_CONNECTIONS
            )
        if self._options.file is not None:
            self._keeping = asyncio.create_task(self._keep(self._options.file))

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _keep(self, file: Path) -> None:
        while True:
            self._write(file)
            await asyncio.sleep(self._every)

    def _write(self, file: Path) -> None:
        """Renew the file while the worker is well; remove it when it is not, so that being there is enough."""
        try:
            report = self._look()
            if report["alive"]:
                draft = _draft(file)
                draft.write_bytes(_encoded(report))
                draft.replace(file)
            else:
                file.unlink(missing_ok=True)
            self._file_trouble = False
        except OSError as error:
            if not self._file_trouble:
                self._file_trouble = True
                text = f"the health file cannot be written: {error}"
                event(logger, logging.WARNING, "health.trouble", text, file=str(file))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= MAX_CONNECTIONS:
                async with asyncio.timeout(PATIENCE):
                    answer = await self._answer(reader)
                async with asyncio.timeout(PATIENCE):
                    writer.write(answer)
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # who asks so slowly, or goes away, gets no answer
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(431, {"error": f"at most {MAX_REQUEST} bytes"})
        match head.split(b"\r\n", 1)[0].split(b" "):
            case [b"GET" | b"HEAD" as method, b"/health", version] if version.startswith(b"HTTP/1."):
                report = self._look()
                return _response(200 if report["alive"] else 503, report, head_only=method == b"HEAD")
            case [b"GET" | b"HEAD", _, _]:
                return _response(404, {"error": "only /health is served here"})
            case [_, _, _]:
                return _response(405, {"error": "GET /health"})
            case _:
                return _response(400, {"error": "not HTTP"})


def _draft(file: Path) -> Path:
    return file.with_name(f"{file.name}.{os.getpid()}.tmp")


def _try_to_write_beside(file: Path) -> None:
    """Refuse a place that will not do at the start: later on, it can only be logged."""
    try:
        _draft(file).write_bytes(b"")
        _draft(file).unlink()
    except OSError as error:
        raise click.ClickException(
            f"The health file {file} cannot be written: {error.strerror}; give --health-file another place."
        ) from error


def children_report(files: list[Path], patience: float) -> Report:
    """What a supervisor says: well while one of its workers is, as their own files tell."""
    reports = [_fresh(file, patience) for file in files]
    return {"alive": any(report is not None for report in reports), "processes": reports}


def _fresh(file: Path, patience: float) -> Report | None:
    try:
        if time.time() - file.stat().st_mtime > patience:
            return None
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


def _encoded(report: Report) -> bytes:
    return json.dumps(report).encode() + b"\n"


def _response(status: int, report: Report, *, head_only: bool = False) -> bytes:
    body = _encoded(report)
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)
