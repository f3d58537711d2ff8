"""Placeholders of other databases in a user's statement: PostgreSQL's error is told with the way to write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from onejob import App, WrongCall
from onejob.stores.postgres.parameters import other_placeholder


@pytest.mark.parametrize(
    ("statement", "parameters", "what"),
    [
        ("insert into paid values (?)", (9,), r"\? is no placeholder there"),
        ("insert into paid values (?)", {"id": 9}, r"\? is no placeholder there"),
        ("insert into paid values (%s)", (9,), "%s is no placeholder there"),
        ("insert into paid values (%(id)s)", {"id": 9}, r"%\(id\)s is no placeholder there"),
        ("insert into paid values (:id)", (9,), ":id needs a dict"),
    ],
)
async def test_a_placeholder_of_another_kind_is_named_with_the_remedy(
    postgres_url: str, statement: str, parameters: Sequence[Any] | Mapping[str, Any], what: str
) -> None:
    async def pay(app: App) -> None:
        async with app.transaction() as tx:
            await tx.execute("create table paid (id integer)")
            await tx.execute(statement, parameters)

    async with App(postgres_url) as app:
        with pytest.raises(WrongCall, match=rf": {what}\. Write :name and pass a dict"):
            await pay(app)


@pytest.mark.parametrize(
    "statement",
    [
        "select 'why? 50%s :name', \"a?\" -- ?\n /* ? /* %s */ :id */ frm x",
        "select doc ? 'a' frm x where id = $1",
        "select a::int, b[1:n] frm x",
        "select",
    ],
)
def test_what_is_no_placeholder_is_not_taken_for_one(statement: str) -> None:
    assert other_placeholder(statement) is None


async def test_other_mistakes_stay_the_databases_own(postgres_url: str) -> None:
    async with App(postgres_url) as app:
        with pytest.raises(Exception, match="syntax error") as caught:
            async with app.transaction() as tx:
                await tx.execute("select 1 frm x where id = $1", (9,))
        assert not isinstance(caught.value, WrongCall)
