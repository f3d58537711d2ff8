"""For tests of programs that use onejob, and of stores that implement its contract.

`FakeClock` makes time a matter of arithmetic, `tick` fires schedules, `drain` runs what is due, the assertions look at what was
enqueued and absorbed, and `onejob.testing.conformance` holds a store to every promise of the contract.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onejob.testing.assertions import (
        aassert_absorbed,
        aassert_enqueued,
        aassert_not_enqueued,
        assert_absorbed,
        assert_enqueued,
        assert_not_enqueued,
    )
    from onejob.testing.clock import FakeClock
    from onejob.testing.draining import Drained, Ran, adrain, drain
    from onejob.testing.ticking import atick, tick

__all__ = [
    "Drained",
    "FakeClock",
    "Ran",
    "aassert_absorbed",
    "aassert_enqueued",
    "aassert_not_enqueued",
    "adrain",
    "assert_absorbed",
    "assert_enqueued",
    "assert_not_enqueued",
    "atick",
    "drain",
    "tick",
]

_PLACES = {
    "FakeClock": "clock",
    **dict.fromkeys(["Drained", "Ran", "adrain", "drain"], "draining"),
    **dict.fromkeys(["atick", "tick"], "ticking"),
}


def __getattr__(name: str) -> object:
    # Late, because pytest imports this package for its plugin in every project that has onejob installed.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES.get(name, 'assertions')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
