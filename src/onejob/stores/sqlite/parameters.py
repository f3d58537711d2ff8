"""A user's statement with its parameters, refused in the same cases and words as on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apsw

from onejob.core.errors import InvalidOption, WrongCall, shown
from onejob.stores.sqlite.connect import Bindings, Row
from onejob.stores.sqlite.session import Session


def rows(session: Session, statement: str, parameters: Bindings) -> list[Row]:
    """Run it to its end and return its rows."""
    cursor: Any = session.connection.cursor()
    if not isinstance(parameters, Mapping):
        cursor.exec_trace = _refuse_names
    try:
        return list(cursor.execute(statement, parameters))
    except KeyError as error:
        raise InvalidOption(
            f"The statement has :{error.args[0]}, for which there is no parameter: {shown(statement)}."
        ) from None
    except apsw.BindingsError as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise InvalidOption(f"The parameters do not fit {shown(statement)}: {said}.") from None


def _refuse_names(cursor: Any, statement: str, _: object) -> bool:
    """SQLite takes named parameters in their order, too; no other database does."""
    names = [name for name in cursor.bindings_names if name is not None and not name.isdecimal()]
    if names:
        raise WrongCall(
            f"{shown(statement)} has :{names[0]}, and its parameters are a sequence: write :name and pass a dict."
        )
    return True
