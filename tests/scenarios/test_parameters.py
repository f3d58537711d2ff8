"""Parameters that do not fit a user's statement are refused alike, whichever database it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from onejob import App, InvalidOption, OnejobError, WrongCall


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("statement", "parameters", "kind", "words"),
    [
        ("select :x, :y", {"x": 1}, InvalidOption, "The statement has :y, for which there is no parameter"),
        ("select :x", {}, InvalidOption, "The statement has :x, for which there is no parameter"),
        ("select $1", (1, 2), InvalidOption, r"The parameters do not fit 'select \$1'"),
        ("select $1", (), InvalidOption, r"The parameters do not fit 'select \$1'"),
        ("select :x", (1,), WrongCall, "rite :name and pass a dict"),
    ],
)
async def test_what_does_not_fit_is_refused(
    url: str,
    statement: str,
    parameters: Sequence[Any] | Mapping[str, Any],
    kind: type[OnejobError],
    words: str,
) -> None:
    async with App(url) as app:
        with pytest.raises(kind, match=words):
            async with app.transaction() as tx:
                await tx.execute(statement, parameters)


async def test_what_fits_is_taken(url: str) -> None:
    async with App(url) as app, app.transaction() as tx:
        assert await tx.execute("select cast(:x as text)", {"x": "a", "unused": 1}) == [("a",)]
        assert await tx.execute("select cast($1 as text)", ["a"]) == [("a",)]
        assert await tx.execute("select 1") == [(1,)]
