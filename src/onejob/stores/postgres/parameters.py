"""`:name` parameters in a user's statement, as PostgreSQL wants them: `$1`, `$2`, … and their values in order.

Nothing else of a statement is changed: placeholders of other databases and drivers are only named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from onejob.core.errors import InvalidOption, shown

_TOKENS = re.compile(
    r"""
      (?P<skip>
          [eE]'(?:[^'\\]|\\.|'')*'            # an escape string
        | '(?:[^']|'')*'                      # a string
        | "(?:[^"]|"")*"                      # an identifier
        | \$(?P<tag>[A-Za-z_][A-Za-z_0-9]*|)\$.*?\$(?P=tag)\$
        | --[^\n]*
        | ::
        | [A-Za-z_0-9]:(?=[A-Za-z_0-9])       # a slice: a[1:n]
      )
    | (?P<comment>/\*)
    | :(?P<name>[A-Za-z_][A-Za-z_0-9]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_PLACEHOLDERS = re.compile(r"\$[0-9]+|\?|%s|%\([A-Za-z_]+\)s|:[A-Za-z_]+")
_COMMENT = re.compile(r"/\*|\*/")


def positional(statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """A statement with its parameters in order; those in order already stay as they are."""
    if not isinstance(parameters, Mapping):
        return statement, parameters
    text, names = _numbered(statement)
    missing = [name for name in names if name not in parameters]
    if missing:
        raise InvalidOption(
            f"The statement has :{missing[0]}, for which there is no parameter: {shown(statement)}."
        )
    return text, [parameters[name] for name in names]


def other_placeholder(statement: str) -> str | None:
    """What was meant as a placeholder in a statement that has none of PostgreSQL's, as far as one can tell."""
    at = 0
    code: list[str] = []
    while (token := _TOKENS.search(statement, at)) is not None:
        code.append(statement[at : token.start()])
        at = _comment_end(statement, token.start()) if token["comment"] else token.end()
        code.append(token[0] if token["name"] else " ")
    found = _PLACEHOLDERS.findall("".join((*code, statement[at:])))
    return None if not found or any(mark.startswith("$") for mark in found) else found[0]


@lru_cache(maxsize=512)
def _numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    names: dict[str, int] = {}
    parts: list[str] = []
    at = 0
    while (token := _TOKENS.search(statement, at)) is not None:
        parts.append(statement[at : token.start()])
        end = _comment_end(statement, token.start()) if token["comment"] else token.end()
        name = token["name"]
        parts.append(
            statement[token.start() : end] if name is None else f"${names.setdefault(name, len(names) + 1)}"
        )
        at = end
    return "".join((*parts, statement[at:])), tuple(names)


def _comment_end(statement: str, start: int) -> int:
    """Where a comment ends; they nest."""
    depth = 0
    for mark in _COMMENT.finditer(statement, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(statement)
