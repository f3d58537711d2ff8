"""What the guide to PostgreSQL shows is run as it is printed, on a database of its own."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy.ext.asyncio
import sqlalchemy.orm  # noqa: F401 - as the guide does

import onejob
from onejob.cli.program import COMMANDS
from onejob.stores.postgres import judging

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "postgres.md"


def test_the_guide_runs(
    postgres: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "LONG_DUE", 600_000)  # a slow machine is no reader who dawdles
    place = postgres.url.rpartition("/")[0] + "/guide"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("create database guide")
        try:
            totals = asyncio.run(run(place))
        finally:
            admin.execute("drop database guide with (force)")
    assert totals == {7: 200, 8: 100, 9: 100, 10: 100, 11: 100, 14: 100}
    assert 'kept: key "7" is held by' in capsys.readouterr().out


async def run(place: str) -> dict[int, int]:
    names: dict[str, Any] = {"__name__": "guide"}
    text = GUIDE.read_text("utf-8").replace("://me@localhost/shop", place[place.index("://") :])
    for source in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        code = compile(source, GUIDE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        made = eval(code, names)
        if inspect.iscoroutine(made):
            await made
    app: onejob.App = names["app"]
    found = {job.payload for job in (await app.ajobs()).jobs}
    assert found == {f'{{"order":{number}}}'.encode() for number in range(7, 15)}
    totals = {row[0]: row[1] for row in await names["pool"].fetch("select id, total from orders")}
    await names["pool"].close()
    await app.aclose()
    names["engine"].dispose()
    await names["async_engine"].dispose()
    return totals


def test_the_guide_names_what_a_url_takes() -> None:
    from onejob.stores.postgres.address import _DRIVER, _FORMS, _PLACE

    text = GUIDE.read_text("utf-8")
    tls = {name for name in _DRIVER if name.startswith("ssl")}
    for name in {*_FORMS, *_DRIVER, *_PLACE, "options"} - tls - {"database"}:
        assert f"`{name}`" in text, name


def test_the_commands_of_the_guide_are_there() -> None:
    named = set(re.findall(r"onejob ([a-z]+)", GUIDE.read_text("utf-8")))
    assert named & set(COMMANDS) >= {"doctor", "migrate", "why"}
