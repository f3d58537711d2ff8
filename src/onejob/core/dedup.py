"""The heart: what happens to a newcomer, given what the holder of its key is doing.

A `Unique` policy is what a user writes. It is checked here and compiled, once, to `Rules`: ten verdicts and
a few numbers. With a key's digest they make a `Plan`, which a store applies without knowing what "debounce"
is: find the holder's standing and age, look up the verdict (`Rules.verdict`), apply it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack, cast

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.job import QUEUED, State
from onejob.core.options import Seconds, millis, whole_number


class Verdict(StrEnum):
    """What becomes of a newcomer. The values are the letters of a compiled table."""

    RUN = "r"
    KEEP = "k"
    UPDATE = "u"
    POSTPONE = "p"
    COLLECT = "c"
    FOLLOW = "f"
    LATER = "l"
    CANCEL = "x"
    RAISE = "!"

    @property
    def word(self) -> str:
        """The verdict as people write it."""
        return self.name.lower()

    @property
    def creates(self) -> bool:
        """True if the verdict makes a new job, which then takes the key."""
        return self in CREATING


CREATING = frozenset({Verdict.RUN, Verdict.FOLLOW, Verdict.LATER, Verdict.CANCEL})
_WORDS = {verdict.word: verdict for verdict in Verdict}


class Standing(IntEnum):
    """What a key's holder is doing, as far as a policy cares; the column of the verdict table."""

    QUEUED = 0
    RUNNING = 1
    OWN = 2
    """Running, and the newcomer comes from inside the holder's own chain."""
    COMPLETED = 3
    FAILED = 4
    """Failed or revoked."""


_QUEUED: Final = Standing.QUEUED  # a look at an enumeration takes as long as a call


def standing(state: State, *, own: bool = False) -> Standing:
    """Place a holder's state into its column."""
    if state in QUEUED:
        return _QUEUED
    if state is State.RUNNING:
        return Standing.OWN if own else Standing.RUNNING
    return Standing.COMPLETED if state is State.COMPLETED else Standing.FAILED


class Rules(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """A compiled policy: plain data, the same for every job of a task, understood by every store.

    `table` holds ten letters: the verdicts for each `Standing` inside the window, then outside it.
    """

    table: str
    window: int | None = None
    wait: int = 0
    max_wait: int | None = None
    max_items: int = 0
    strict: bool = False
    """Refuse a kept duplicate whose arguments differ."""
    forced: bool = False
    """Every cell reads *run*."""

    def verdict(self, standing: Standing, age: int) -> Verdict:
        """Look up what a newcomer gets. A duplicate has `age < window`; no window is no limit."""
        if self.forced:
            return Verdict.RUN
        inside = self.window is None or age < self.window
        return _BY_LETTER[self.table[standing if inside else standing + 5]]

    def forget_at(self, ended: Standing, since: int) -> int | None:
        """Until when a key is remembered after its holder ended like that: None is not at all."""
        if self.table[ended] == Verdict.RUN:
            return None
        return FOREVER if self.window is None else since + self.window

    @cached_property
    def memory(self) -> tuple[int | None, int | None]:
        """For how long a key is remembered if its holder completed, and if not; None: not at all."""
        return self.forget_at(Standing.COMPLETED, 0), self.forget_at(Standing.FAILED, 0)

    @cached_property
    def keeps(self) -> frozenset[State]:
        """How a holder stands that is kept inside the window; not if the newcomer comes from its own chain."""
        return frozenset(state for state in State if self.verdict(standing(state), _YOUNGEST) is Verdict.KEEP)

    @cached_property
    def encoded(self) -> bytes:
        """The rules as stored beside a job, for an operator's later retry."""
        return _rules_encoder.encode(self)


FOREVER: Final = 2**62
_YOUNGEST: Final = -FOREVER
"""An age inside every window."""
_BY_LETTER = {verdict.value: verdict for verdict in Verdict}
_rules_encoder = msgspec.json.Encoder()
_rules_decoder = msgspec.json.Decoder(Rules)


def decode_rules(data: bytes) -> Rules:
    """Read what `Rules.encoded` wrote."""
    return _rules_decoder.decode(data)


class Plan(msgspec.Struct, frozen=True, gc=False):
    """One newcomer's claim to a key: whose key it is, and the rules to judge by."""

    digest: bytes
    text: str
    rules: Rules
    fingerprint: bytes
    items: int = 0
    """How many items this call brings, for *collect*."""
    size: int = 0
    """How many bytes its payload had before it was compressed; 0: it was not."""


class AppWindow:
    """The type of `APP_WINDOW`: the window that `App(window=…)` or `$ONEJOB_WINDOW` configures."""

    def __repr__(self) -> str:
        return "onejob.APP_WINDOW"

    def __reduce__(self) -> str:
        return "APP_WINDOW"  # copied and unpickled as itself


class Unset:
    """The type of `UNSET`: not given, which is not the same as given as None."""

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"  # copied and unpickled as itself


APP_WINDOW: Final = AppWindow()
UNSET: Final = Unset()

Window: TypeAlias = Seconds | AppWindow | None
By: TypeAlias = "str | Iterable[str] | Callable[..., Any] | None"
QueuedVerdict: TypeAlias = Literal[
    "run", "keep", "update", "postpone", "collect", "follow", "later", "cancel", "raise"
]
RunningVerdict: TypeAlias = Literal["run", "keep", "follow", "later", "cancel", "raise"]
EndedVerdict: TypeAlias = Literal["run", "keep", "later", "raise"]

Column: TypeAlias = Literal["queued", "running", "completed", "failed"]

_COLUMNS: tuple[Column, ...] = ("queued", "running", "completed", "failed")
_ENDED_ALLOWED = frozenset({Verdict.RUN, Verdict.KEEP, Verdict.LATER, Verdict.RAISE})
_ALLOWED: dict[Column, frozenset[Verdict]] = {
    "queued": frozenset(Verdict),
    "running": _ENDED_ALLOWED | {Verdict.FOLLOW, Verdict.CANCEL},
    "completed": _ENDED_ALLOWED,
    "failed": _ENDED_ALLOWED,
}


class Row(msgspec.Struct, frozen=True):
    """One row of the verdict table, as the presets state it; `outside` is for a live holder past the window."""

    name: str
    queued: Verdict
    running: Verdict
    completed: Verdict
    failed: Verdict
    outside: Verdict = Verdict.RUN

    def __repr__(self) -> str:
        return f"<{self.name}>"


_V = Verdict
IN_FLIGHT = Row("in_flight", _V.KEEP, _V.KEEP, _V.RUN, _V.RUN)
ONCE = Row("once", _V.KEEP, _V.KEEP, _V.KEEP, _V.RUN)
THROTTLE = Row("throttle", _V.KEEP, _V.KEEP, _V.KEEP, _V.KEEP)
TRAILING = Row("throttle", _V.UPDATE, _V.LATER, _V.LATER, _V.LATER)
COALESCE = Row("coalesce", _V.KEEP, _V.FOLLOW, _V.RUN, _V.RUN, outside=_V.FOLLOW)
LATEST = Row("latest", _V.UPDATE, _V.FOLLOW, _V.RUN, _V.RUN, outside=_V.FOLLOW)
DEBOUNCE = Row("debounce", _V.POSTPONE, _V.FOLLOW, _V.RUN, _V.RUN)
COLLECT = Row("collect", _V.COLLECT, _V.FOLLOW, _V.RUN, _V.RUN)
RESTART = Row("restart", _V.CANCEL, _V.CANCEL, _V.RUN, _V.RUN)


class Shared(TypedDict, total=False):
    """The settings every preset takes; see `Unique`."""

    by: By
    key: str | None
    scope: Literal["task", "queue"]
    hold: bool
    overlap: bool
    mismatch: Literal["tell", "raise"]
    queued: QueuedVerdict
    running: RunningVerdict
    completed: EndedVerdict
    failed: EndedVerdict


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """A policy: which jobs are the same, and what a newcomer gets while another holds its key.

    Use a preset (`Unique.once()`, `Unique.latest(within=5)` …); a bare `Unique(…)` means *in flight*.

    `by` names the arguments that make the key, or is a function of the arguments; `key` is the key itself
    (None: not unique); neither means the whole call; `by=()` means one per task. `scope="queue"` leaves the
    task out of the key. `queued`, `running`, `completed`, `failed` replace single verdicts of the preset.
    `hold` keeps the key while the holder lives, even past the window. `overlap` turns *follow* into *run*.
    `mismatch="raise"` refuses a kept duplicate whose arguments differ.
    """

    by: By = None
    key: str | Unset | None = UNSET
    within: Window = None
    scope: Literal["task", "queue"] = "task"
    hold: bool = False
    overlap: bool = False
    mismatch: Literal["tell", "raise"] = "tell"
    queued: QueuedVerdict | None = None
    running: RunningVerdict | None = None
    completed: EndedVerdict | None = None
    failed: EndedVerdict | None = None
    wait: Seconds = 0
    max_wait: Seconds | None = None
    into: str | None = None
    max_items: int = 100
    row: Row = IN_FLIGHT

    @classmethod
    def in_flight(cls, within: Window = None, **shared: Unpack[Shared]) -> Unique:
        """Keep the one that is queued or running; once it has ended, run again."""
        return cls(row=IN_FLIGHT, within=within, **_known(shared))

    @classmethod
    def once(cls, within: Window = None, **shared: Unpack[Shared]) -> Unique:
        """Like `in_flight`, and a completed one counts too; a failed one may be asked for again."""
        return cls(row=ONCE, within=within, **_known(shared))

    @classmethod
    def throttle(cls, every: Window, *, trailing: bool = False, **shared: Unpack[Shared]) -> Unique:
        """At most one per window, whatever became of it; `trailing` runs the last call when the window ends."""
        if every is None:
            raise InvalidOption("Unique.throttle(every=…) needs a number of seconds, not None.")
        return cls(row=TRAILING if trailing else THROTTLE, within=every, **_known(shared))

    @classmethod
    def coalesce(cls, within: Window = None, **shared: Unpack[Shared]) -> Unique:
        """Keep the queued one; while one runs, one more follows it."""
        return cls(row=COALESCE, within=within, **_known(shared))

    @classmethod
    def latest(cls, within: Window = None, **shared: Unpack[Shared]) -> Unique:
        """Put the newest arguments into the queued one; while one runs, one more follows it."""
        return cls(row=LATEST, within=within, **_known(shared))

    @classmethod
    def debounce(cls, wait: Seconds, max_wait: Seconds | None = None, **shared: Unpack[Shared]) -> Unique:
        """Start once calls have been quiet for `wait`, with the newest arguments; at the latest `max_wait`
        after the first call."""
        return cls(row=DEBOUNCE, wait=wait, max_wait=max_wait, **_known(shared))

    @classmethod
    def collect(
        cls, into: str = "items", wait: Seconds = 0, max_items: int = 100, **shared: Unpack[Shared]
    ) -> Unique:
        """Gather the lists passed as `into` into one job, due `wait` after the first call, or when full."""
        return cls(row=COLLECT, into=into, wait=wait, max_items=max_items, **_known(shared))

    @classmethod
    def restart(cls, **shared: Unpack[Shared]) -> Unique:
        """Revoke the older one, then run."""
        return cls(row=RESTART, **_known(shared))

    def __post_init__(self) -> None:
        if self.by is not None and self.key is not UNSET:
            raise InvalidOption("Unique(by=…) and Unique(key=…) exclude each other: give one of them.")
        if self.by is not None and not callable(self.by):
            msgspec.structs.force_setattr(self, "by", _argument_names(self.by))
        if isinstance(self.key, str):
            check_key(self.key)
        elif self.key is not None and self.key is not UNSET:
            raise InvalidOption(f"Unique(key=…) must be a string or None, not {shown(self.key)}.")
        if self.scope not in ("task", "queue"):
            raise InvalidOption(f'Unique(scope=…) must be "task" or "queue", not {shown(self.scope)}.')
        if self.mismatch not in ("tell", "raise"):
            raise InvalidOption(f'Unique(mismatch=…) must be "tell" or "raise", not {shown(self.mismatch)}.')
        compile_rules(self, app_window=1)

    def __repr__(self) -> str:
        told: dict[str, object] = {}
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            value: object = _as_written(self.by) if name == "by" else getattr(self, name)
            if name != "row" and value is not default and value != default:
                told["every" if name == "within" and self.row.name == THROTTLE.name else name] = value
        if self.row == TRAILING:
            told["trailing"] = True
        return f"Unique.{self.row.name}({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    @property
    def delays(self) -> bool:
        """True if the policy itself decides when its jobs are due, so that a call's `delay=` cannot."""
        return _checked(self, "queued") in (Verdict.POSTPONE, Verdict.COLLECT)


def compile_rules(policy: Unique, app_window: int | None) -> Rules | None:
    """Turn a policy into rules, or None where its window says that deduplication is off.

    `app_window` (ms) is what `APP_WINDOW` stands for; None means that the app configures none.
    """
    inside: dict[Column, Verdict] = {column: _checked(policy, column) for column in _COLUMNS}
    window = _window(policy, app_window)
    wait = _span("wait", policy.wait, minimum=0)
    max_wait = None if policy.max_wait is None else _span("max_wait", policy.max_wait, minimum=max(wait, 1))
    used = set(inside.values())
    _check_sense(policy, used, window=window, wait=wait)
    max_items = whole_number("max_items", policy.max_items, 1, 10_000)
    if window is not None and window <= 0:
        return None
    outside: dict[Column, Verdict] = {
        "queued": _held(inside["queued"]) if policy.hold else policy.row.outside,
        "running": _held(inside["running"]) if policy.hold else policy.row.outside,
        "completed": Verdict.RUN,
        "failed": Verdict.RUN,
    }
    if policy.overlap:
        inside, outside = _overlapping(inside), _overlapping(outside)
    return Rules(
        table=_letters(inside) + _letters(outside),
        window=window,
        wait=wait if used & {Verdict.POSTPONE, Verdict.COLLECT} else 0,
        max_wait=max_wait,
        max_items=max_items if Verdict.COLLECT in used else 0,
        strict=policy.mismatch == "raise",
    )


def forced(rules: Rules) -> Rules:
    """The same rules with every cell *run* (`force=True`); what is remembered afterwards stays the policy's."""
    return msgspec.structs.replace(rules, forced=True)


def check_key(key: str) -> str:
    """Return a key given as text if it is 1 to 1024 characters that every store can hold."""
    if not 1 <= len(key) <= 1024 or "\0" in key or not _encodable(key):
        raise InvalidOption(
            f"A key must be 1 to 1024 characters without NUL or lone surrogates, not {shown(key)}; "
            "use None for a job that is not unique."
        )
    return key


def _held(verdict: Verdict) -> Verdict:
    """A verdict past the window: that cannot end once more, so who would come later comes afterwards."""
    return Verdict.FOLLOW if verdict is Verdict.LATER else verdict


def _overlapping(cells: dict[Column, Verdict]) -> dict[Column, Verdict]:
    return {column: Verdict.RUN if cell is Verdict.FOLLOW else cell for column, cell in cells.items()}


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _argument_names(by: Iterable[str]) -> tuple[str, ...]:
    names = tuple(by) if isinstance(by, Iterable) and not isinstance(by, str) else (by,)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidOption(f"Unique(by=…) takes names of arguments or a function, not {shown(name)}.")
    # A set has no order of its own, and a key must be the same in every process.
    return tuple(sorted(names)) if isinstance(by, (set, frozenset)) else names


def _known(shared: Shared) -> Shared:
    """The settings, all of which there are."""
    for name in shared:
        if name not in Shared.__annotations__:
            from difflib import get_close_matches  # for mistakes only

            settings = sorted(Shared.__annotations__)
            near = get_close_matches(name, settings, n=1, cutoff=0.5)
            hint = (
                f"did you mean {near[0]}=…?" if near else f"besides its own there are {', '.join(settings)}."
            )
            raise InvalidOption(f"This Unique takes no {name}=…: {hint}")
    return shared


def _as_written(by: By) -> object:
    """One name without the tuple around it."""
    if not isinstance(by, tuple):
        return by
    names = cast("tuple[str, ...]", by)
    return names[0] if len(names) == 1 else names


def _window(policy: Unique, app_window: int | None) -> int | None:
    within = policy.within
    if within is None:
        return None
    if isinstance(within, AppWindow):
        if app_window is None:
            raise InvalidOption(
                "within=onejob.APP_WINDOW needs a window: give App(window=…) or set $ONEJOB_WINDOW."
            )
        return app_window
    return _span("Unique.throttle(every=…)" if policy.row.name == THROTTLE.name else "within", within)


def _span(name: str, value: object, *, minimum: int | None = None) -> int:
    if isinstance(value, str):
        raise InvalidOption(
            f"{name} must be seconds (a number) or a timedelta, not {shown(value)}: {_meant(value)}"
        )
    return millis(name, value, minimum=minimum)


def _meant(text: str) -> str:
    """What a text in the place of a length of time was probably for."""
    from onejob.core.filter import span  # for mistakes only

    try:
        return f"write {span('', text) / 1000:g}."
    except InvalidOption:
        return (
            f"what makes the key is said with by={shown(text)}." if text.isidentifier() else "write a number."
        )


def _checked(policy: Unique, column: Column) -> Verdict:
    word: object = getattr(policy, column)
    if word is None:
        return getattr(policy.row, column)
    verdict = _WORDS.get(word) if isinstance(word, str) else None
    if verdict is None or verdict not in _ALLOWED[column]:
        allowed = ", ".join(sorted(v.word for v in _ALLOWED[column]))
        raise InvalidOption(f"{column}={shown(word)} makes no sense: a {column} holder allows {allowed}.")
    return verdict


def _check_sense(policy: Unique, used: set[Verdict], *, window: int | None, wait: int) -> None:
    changing = used & {Verdict.UPDATE, Verdict.POSTPONE, Verdict.COLLECT}
    if policy.scope == "queue" and changing:
        words = ", ".join(sorted(v.word for v in changing))
        raise InvalidOption(f'scope="queue" cannot {words}: the holder may be a job of another task.')
    if Verdict.LATER in used and window is None:
        raise InvalidOption("A verdict of later needs a window: give within=… (seconds).")
    if Verdict.POSTPONE in used and wait <= 0:
        raise InvalidOption("A verdict of postpone needs wait=… of more than zero seconds.")
    if (wait or policy.max_wait is not None) and not used & {Verdict.POSTPONE, Verdict.COLLECT}:
        raise InvalidOption(
            "wait=… and max_wait=… need a verdict of postpone or collect: this policy has none."
        )
    if policy.into is not None and Verdict.COLLECT not in used:
        raise InvalidOption("into=… needs a verdict of collect: this policy has none.")
    for name in ("hold", "overlap"):
        if not isinstance(getattr(policy, name), bool):
            raise InvalidOption(f"{name}=… must be True or False, not {shown(getattr(policy, name))}.")
    if Verdict.COLLECT in used and not policy.into:
        raise InvalidOption("A verdict of collect needs into=…: the name of a list parameter.")
    if policy.mismatch == "raise" and Verdict.KEEP not in used:
        raise InvalidOption('mismatch="raise" needs a verdict of keep: this policy never keeps a holder.')


def _letters(cells: dict[Column, Verdict]) -> str:
    running = cells["running"]
    own = Verdict.FOLLOW if running in (Verdict.KEEP, Verdict.RAISE, Verdict.CANCEL) else running
    return cells["queued"] + running + own + cells["completed"] + cells["failed"]
