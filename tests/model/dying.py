"""How an operation of the PostgreSQL store is cut off: each of its statements can be seen before and after it is sent, and
its session ended there.
"""

from __future__ import annotations

from typing import Any, Literal

import psycopg
import pytest

from onejob.stores.postgres.driver import Link

Cut = Literal["before", "after"]


class Death:
    """Ends the session of one statement: before the server hears of it, or before its answer is heard."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The user of that URL may end his own sessions."""
        self._server = psycopg.connect(url.partition("?")[0], autocommit=True)
        self.fired = False
        """It has ended the session it was told to."""
        self._left = 0
        self._cut: Cut = "before"
        fetch, execute = Link.fetch, Link.execute

        async def fetch_watched(link: Link, name: str, parameters: tuple[Any, ...]) -> Any:
            dies = not name.startswith("signals.") and self._is_next()  # hints are given beside an operation
            if dies and self._cut == "before":
                self._end(link)
            rows = await fetch(link, name, parameters)
            if dies:
                self._lose_the_answer(link)
            return rows

        async def execute_watched(link: Link, text: str) -> str:
            dies = self._is_next()
            if dies and self._cut == "before":
                self._end(link)
            status = await execute(link, text)
            if dies:
                self._lose_the_answer(link)
            return status

        monkeypatch.setattr(Link, "fetch", fetch_watched)
        monkeypatch.setattr(Link, "execute", execute_watched)

    def at(self, number: int, cut: Cut) -> None:
        """Let the session of that statement, counted from now, end there."""
        self.fired, self._left, self._cut = False, number, cut

    def disarm(self) -> None:
        """Let everybody live."""
        self._left = 0

    def close(self) -> None:
        self._server.close()

    def _is_next(self) -> bool:
        self._left -= 1
        self.fired = self.fired or self._left == 0
        return self._left == 0

    def _end(self, link: Link) -> None:
        pid = link.connection.get_server_pid()
        [ended] = self._server.execute("select pg_terminate_backend(%s, 5000)", [pid]).fetchall()
        assert ended == (True,), "it is gone, and so are its locks"

    def _lose_the_answer(self, link: Link) -> None:
        self._end(link)
        raise ConnectionResetError("injected: the answer is lost")
