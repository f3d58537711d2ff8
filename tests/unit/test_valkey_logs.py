"""What the Valkey store logs has a name for machines, and the names are in the guide."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import onejob.stores.valkey

FOLDER = Path(onejob.stores.valkey.__file__).parent
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "hooks.md"
LEVELS = ("info", "warning", "error")


def lines_logged() -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("logger"), attr=level)) if level in LEVELS:
                    yield f"{file.stem}, line {node.lineno}", node


@pytest.mark.parametrize("call", [pytest.param(call, id=place) for place, call in lines_logged()])
def test_a_line_has_an_event_that_the_guide_knows(call: ast.Call) -> None:
    extras = [keyword.value for keyword in call.keywords if keyword.arg == "extra"]
    assert extras, "it has no fields"
    fields = ast.literal_eval(extras[0])
    assert f"`{fields['event']}`" in GUIDE.read_text()


def test_there_are_such_lines() -> None:
    assert len(list(lines_logged())) >= 7
