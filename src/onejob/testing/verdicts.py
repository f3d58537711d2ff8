"""The verdict table as DESIGN.md prints it, for the reference model.

It is written out again on purpose and shares nothing with `onejob.core.dedup`, so that the two can disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

FOREVER: Final = 1 << 62
COLUMNS: Final = ("queued", "running", "completed", "failed", "past")

#                       queued      running   completed  failed    once `within` has passed, while live
TABLE: Final[dict[str, tuple[str, str, str, str, str]]] = {
    "in_flight": ("keep", "keep", "run", "run", "run"),
    "once": ("keep", "keep", "keep", "run", "run"),
    "throttle": ("keep", "keep", "keep", "keep", "run"),
    "trailing": ("update", "later", "later", "later", "run"),
    "coalesce": ("keep", "follow", "run", "run", "follow"),
    "latest": ("update", "follow", "run", "run", "follow"),
    "debounce": ("postpone", "follow", "run", "run", "run"),
    "collect": ("collect", "follow", "run", "run", "run"),
    "restart": ("cancel", "cancel", "run", "run", "run"),
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A row of the table with what a user may change about it; times in milliseconds."""

    preset: str
    within: int | None = None
    hold: bool = False
    overlap: bool = False
    force: bool = False
    strict: bool = False
    wait: int = 0
    max_wait: int | None = None
    max_items: int = 100
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])

    def verdict(self, column: str, age: int, *, own: bool) -> str:
        """What a newcomer gets from a holder in that column, of that age; `own` if it calls itself."""
        if self.force:
            return "run"
        verdict = self._cell(column, age)
        if self.overlap and verdict == "follow":
            verdict = "run"
        if own and verdict in ("keep", "raise", "cancel"):
            return "follow"
        return verdict

    def remembered_until(self, column: str, since: int) -> int | None:
        """Until when a key lives on after its holder ended in that column; None: not at all."""
        if self._inside(column) == "run":
            return None
        return FOREVER if self.within is None else since + self.within

    def _cell(self, column: str, age: int) -> str:
        live = column in ("queued", "running")
        if self.within is None or age < self.within:
            return self._inside(column)
        if live and self.hold:
            # A window that has passed cannot end once more: who would come later comes afterwards.
            return "follow" if self._inside(column) == "later" else self._inside(column)
        return TABLE[self.preset][COLUMNS.index("past")] if live else "run"

    def _inside(self, column: str) -> str:
        return self.overrides.get(column) or TABLE[self.preset][COLUMNS.index(column)]
