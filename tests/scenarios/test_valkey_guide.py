"""What the guide to Valkey shows is run as it is printed, on a namespace of its own."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import onejob
from onejob import App
from onejob.stores.valkey.address import _FORMS
from onejob.testing import adrain

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "valkey.md"


async def test_the_guide_runs(valkey_url: str) -> None:
    text = GUIDE.read_text("utf-8").replace('"valkey://localhost:6379"', f'"{valkey_url}"')
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    charged = await run(first)
    assert [job.payload for job in (await charged.ajobs("task:charge")).jobs] == [b'{"order":7}']
    await charged.aclose()
    split = await run(second.replace(".enqueue(", ".aenqueue(").replace("sync.using", "await sync.using"))
    [job] = (await split.ajobs("task:sync")).jobs
    assert re.fullmatch(r"sync-[0-9]+", job.queue)
    await split.aclose()


async def run(source: str) -> App:
    names: dict[str, Any] = {"__name__": "guide"}
    code = compile(source, GUIDE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    made = eval(code, names)
    if inspect.iscoroutine(made):
        await made
    return names["app"]


async def test_the_guide_to_chains_says_how_to_fan_out_here(valkey_url: str) -> None:
    text = (GUIDE.parent / "chains.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    as_elsewhere, as_here = (block for block in blocks if "async def split" in block)
    async with App(valkey_url) as app:
        names = {"__name__": "guide", "app": app, "current_job": onejob.current_job, "Unique": onejob.Unique}
        exec(as_elsewhere.partition("\nprimes =")[0], names)
        exec(as_here, names)
        receipt = await names["split_on_valkey"].aenqueue(below=100, parts=4)
        await adrain(app, queues=["default", "parts"])
        assert await receipt.aresult() == 25


def test_the_guide_names_what_a_url_takes() -> None:
    text = GUIDE.read_text("utf-8")
    assert [name for name in _FORMS if f"`{name}`" not in text] == []
