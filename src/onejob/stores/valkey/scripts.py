"""The .lua files as one library of functions, which a server keeps, or, where it may not, as scripts that are sent.

Parts say what there is; operations are files that say in a `--!` line what they may do: `reads` writes nothing, `grows` is
refused when memory is full, and `works` passes even then, so that what is there can be worked off. A function costs nothing to
begin, because the server has made all of it before; a script makes all of it anew with every call.

Names in capitals that stand for a number or a text are put in where they are used: a Lua function may have 200 names and
know 60 of another's.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from onejob.core.chain import stranded
from onejob.core.job import ChainId
from onejob.core.lifecycle import EXPIRED
from onejob.stores.valkey.bounds import GRACE, MOST_BYTES, PORTION

_FOLDER: Final = Path(__file__).parent / "lua"
_PARTS: Final = (
    *(
        "records",
        "changes",
        "newcomers",
        "judge",
        "lanes",
        "ending",
        "making",
        "plain",
        "swift",
        "accepting",
        "dropping",
        "claiming",
        "settling",
    ),
    *("scheduling", "showing", "choosing", "burying", "viewing"),
)
"""Each may use those before it."""
_KIND: Final = re.compile(r"^--! (reads|grows|works)$", re.MULTILINE)
_BEGINS_ITSELF: Final = re.compile(r"^locate\(", re.MULTILINE)
_OPENS_ITSELF: Final = re.compile(r"^open(_for)?\(", re.MULTILINE)
_FLAGS: Final = {"reads": "no-writes", "grows": "", "works": "allow-oom"}
_CONSTANTS: Final = re.compile(
    r"^local ([A-Z_]+(?:, [A-Z_]+)*) = ((?:[0-9]+|'[^']*')(?:, (?:[0-9]+|'[^']*'))*)$", re.MULTILINE
)
_GIVEN: Final = {
    "stranded": stranded(ChainId("%s"), "%s", None),
    "expired": EXPIRED,
    "portion": str(PORTION),
    "bytes": str(MOST_BYTES),
    "grace": str(GRACE),
}


class Library(NamedTuple):
    """All operations as a text that a server loads once."""

    name: str
    text: str

    def function(self, operation: str) -> str:
        """What an operation is called by. Other versions have other names, and can be there at the same time."""
        return f"{self.name}_{operation}"


@cache
def library() -> Library:
    """The library of this version."""
    code = parts() + "".join(_registered(name, _read(name)) for name in names())
    name = f"onejob_{hashlib.sha256(code.encode()).hexdigest()[:12]}"
    return Library(name, f"#!lua name={name}\n" + code.replace("/* library */", name))


@cache
def source(name: str) -> str:
    """The whole text of an operation as a script of its own."""
    return assembled(_read(name))


def assembled(text: str) -> str:
    """An operation, given by its text, as a script of its own."""
    flags = _FLAGS[_kind(text)]
    return f"#!lua{flags and f' flags={flags}'}\n{parts()}\nreturn ({_function(text)})(KEYS, ARGV)"


@cache
def parts() -> str:
    """What all operations stand on."""
    return "\n".join(_with_constants(_read(part)) for part in _PARTS)


@cache
def names() -> list[str]:
    """The operations."""
    return sorted(file.stem for file in _FOLDER.glob("*.lua") if file.stem not in _PARTS)


def read_all() -> None:
    """Read every file now: an upgrade in place must not mix this process's code with newer scripts."""
    library()
    for name in names():
        source(name)


def _registered(name: str, text: str) -> str:
    flags = _FLAGS[_kind(text)]
    return (
        f"\nredis.register_function{{ function_name = '/* library */_{name}', flags = {{ {flags and repr(flags)} }},\n"
        f"callback = {_function(text)} }}\n"
    )


def _function(text: str) -> str:
    opens = _kind(text) != "reads" and not _OPENS_ITSELF.search(text)
    opening = "open()\n" if opens else ""
    beginning = "" if _BEGINS_ITSELF.search(text) else "begin(KEYS, ARGV)\n"
    return f"function(KEYS, ARGV)\n{beginning}{opening}{_with_constants(text)}\nend"


def _kind(text: str) -> str:
    found = _KIND.search(text)
    assert found is not None, "the operation does not say what it may do"
    return found[1]


def _with_constants(text: str) -> str:
    values = _shared_constants() | _constants(text)
    bare = re.sub(r"[ \t]*--.*$", "", _CONSTANTS.sub("", text), flags=re.MULTILINE)
    return re.sub(r"\b[A-Z_]+\b", lambda match: values.get(match[0], match[0]), bare)


@cache
def _shared_constants() -> dict[str, str]:
    found: dict[str, str] = {}
    for part in _PARTS:
        more = _constants(_read(part))
        assert found.keys().isdisjoint(more), f"{part} gives another meaning to {found.keys() & more}"
        found |= more
    return found


def _constants(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for words, literals in _CONSTANTS.findall(text):
        values |= zip(words.split(", "), re.findall(r"[0-9]+|'[^']*'", literals), strict=True)
    return values


def _read(name: str) -> str:
    text = (_FOLDER / f"{name}.lua").read_text("utf-8")
    return re.sub(r"/\* ([a-z]+) \*/", lambda match: _GIVEN[match[1]], text)
