"""The .lua files as scripts: each operation is a file that names, in a `--!` line, the parts it stands on.

Names in capitals that stand for a number or a text are put in where they are used: a Lua function may have 200 names and
know 60 of another's, and one more costs time on every call. A first line for the server says what a script may do: `reads` writes nothing, `grows` is refused when memory is full,
and everything else passes even then, so that what is there can be worked off.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from onejob.core.chain import stranded
from onejob.core.job import ChainId
from onejob.core.lifecycle import EXPIRED

_FOLDER: Final = Path(__file__).parent / "lua"
_PARTS: Final = re.compile(r"^--! (.+)$", re.MULTILINE)
_CONSTANTS: Final = re.compile(
    r"^local ([A-Z_]+(?:, [A-Z_]+)*) = ((?:[0-9]+|'[^']*')(?:, (?:[0-9]+|'[^']*'))*)$", re.MULTILINE
)
_KINDS: Final = {"reads": "#!lua flags=no-writes", "grows": "#!lua"}
_TEXTS: Final = {"stranded": stranded(ChainId("%s"), "%s", None), "expired": EXPIRED}


@cache
def source(name: str) -> str:
    """The whole text of an operation's script."""
    return assembled(_read(name))


def assembled(text: str) -> str:
    """A script with the parts that it names."""
    found = _PARTS.search(text)
    assert found is not None, "the script names no parts"
    words = found[1].split()
    head = next((_KINDS[word] for word in words if word in _KINDS), "#!lua flags=allow-oom")
    parts = (_read(word) for word in words if word not in _KINDS)
    return f"{head}\n{_with_constants(chr(10).join((*parts, text)))}"


def names() -> list[str]:
    """The operations."""
    return sorted(file.stem for file in _FOLDER.glob("*.lua") if _PARTS.search(file.read_text("utf-8")))


def read_all() -> None:
    """Read every file now: an upgrade in place must not mix this process's code with newer scripts."""
    for name in names():
        source(name)


def _with_constants(text: str) -> str:
    values: dict[str, str] = {}
    for names, literals in _CONSTANTS.findall(text):
        values |= zip(names.split(", "), _literals(literals), strict=True)
    bare = re.sub(r"[ \t]*--.*$", "", _CONSTANTS.sub("", text), flags=re.MULTILINE)
    return re.sub(r"\b[A-Z_]+\b", lambda match: values.get(match[0], match[0]), bare)


def _literals(text: str) -> list[str]:
    return re.findall(r"[0-9]+|'[^']*'", text)


def _read(name: str) -> str:
    text = (_FOLDER / f"{name}.lua").read_text("utf-8")
    return re.sub(r"/\* ([a-z]+) \*/", lambda match: _TEXTS[match[1]], text)
