"""What the guide to Valkey shows is run as it is printed, on a namespace of its own."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

from onejob import App
from onejob.stores.valkey.address import _FORMS

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


def test_the_guide_names_what_a_url_takes() -> None:
    text = GUIDE.read_text("utf-8")
    assert [name for name in _FORMS if f"`{name}`" not in text] == []
