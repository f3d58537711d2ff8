"""Trials of producers: one by one, from many coroutines, in bulk; with keys, few of them or many the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bench import hot_key, producing
from bench.aims import A_KEY_EACH, ALL_NEW, KEYLESS
from bench.figures import OURS, Measure, Samples, Trial, Unit, figure
from bench.jobs import ALL_KNOWN, ALL_UNKNOWN, NINE_IN_TEN, Repetition
from bench.trials.setting import Setting

_REPEATED = {"90": NINE_IN_TEN, "100": ALL_KNOWN}
"""By the share of duplicates."""


def trials(setting: Setting) -> Iterator[Trial]:
    """All of them."""
    yield _bulk(setting)
    yield _concurrent(setting)
    yield _one_by_one(setting)
    yield _keys(setting)
    yield _duplicates(setting, "updates", "latest", "update")
    yield _duplicates(setting, "debounces", "debounce", "postpone")
    yield _hot_key(setting)


def our_bulk(setting: Setting) -> Callable[[Path], float]:
    """Measures jobs without keys."""
    return lambda folder: producing.bulk(setting.engine.url(folder), setting.scale.bulk)


def _bulk(setting: Setting) -> Trial:
    line = setting.line("bulk", "bulk enqueue, 1,000 a call", Unit.RATE)
    return setting.trial("bulk", (line,), figure("bulk", OURS, our_bulk(setting)))


def _concurrent(setting: Setting) -> Trial:
    def ours(folder: Path) -> float:
        return producing.concurrent(setting.engine, folder, setting.scale.concurrent)

    title = f"{producing.WAITERS} concurrent aenqueue (bare: bulk)"
    line = setting.line("concurrent", title, Unit.RATE)
    return setting.trial("concurrent", (line,), figure("concurrent", OURS, ours))


def _one_by_one(setting: Setting) -> Trial:
    def ours(folder: Path) -> float:
        return producing.one_by_one(setting.engine.url(folder), setting.scale.single)

    line = setting.line("one-by-one", "enqueue one by one", Unit.RATE)
    return setting.trial("one-by-one", (line,), figure("one-by-one", OURS, ours))


def _keys(setting: Setting) -> Trial:
    lines = (
        setting.line("keys-0", "bulk enqueue, all keys new", Unit.RATE),
        setting.line("keys-90", "bulk enqueue, 90 % duplicates kept", Unit.RATE),
        setting.line("keys-100", "bulk enqueue, 100 % duplicates kept", Unit.RATE),
    )
    ours = _by_share(setting, "keys", "kept")
    return setting.trial("keys", lines, *ours, figure("keys-0", KEYLESS, our_bulk(setting)))


def _duplicates(setting: Setting, trial: str, policy: str, verb: str) -> Trial:
    lines = (
        setting.line(f"{trial}-0", f"bulk enqueue to {verb}, all keys new", Unit.RATE),
        setting.line(f"{trial}-90", f"bulk enqueue, 90 % {verb} a queued job", Unit.RATE),
        setting.line(f"{trial}-100", f"bulk enqueue, 100 % {verb} a queued job", Unit.RATE),
    )
    return setting.trial(trial, lines, *_by_share(setting, trial, policy))


def _by_share(setting: Setting, trial: str, policy: str) -> tuple[Measure, ...]:
    def ours(folder: Path, repetition: Repetition) -> float:
        return producing.deduplicated(
            setting.engine.url(folder), setting.scale.bulk, producing.POLICIES[policy], repetition
        )

    def all_new(folder: Path) -> Samples:
        rate = ours(folder, ALL_UNKNOWN)
        return {(f"{trial}-0", OURS): rate, **{(f"{trial}-{share}", ALL_NEW): rate for share in _REPEATED}}

    repeated = (
        figure(f"{trial}-{share}", OURS, lambda folder, repetition=repetition: ours(folder, repetition))
        for share, repetition in _REPEATED.items()
    )
    return all_new, *repeated


def _hot_key(setting: Setting) -> Trial:
    def measure(folder: Path, policy: str, keys: str) -> Samples:
        who = OURS if keys == hot_key.ONE else A_KEY_EACH
        crowd = hot_key.crowd(setting.engine, folder, policy, keys, setting.scale.single // 2)
        return {(f"hot-{policy}", who): crowd.others, (f"hot-{policy}-own", who): crowd.rate}

    many = hot_key.PRODUCERS
    lines = tuple(
        line
        for policy in producing.POLICIES
        for line in (
            setting.line(f"hot-{policy}", f"other keys beside {many} on one, {policy}", Unit.COST),
            setting.line(f"hot-{policy}-own", f"{many} producers on one key, {policy}", Unit.RATE),
        )
    )
    measures = [
        lambda folder, policy=policy, keys=keys: measure(folder, policy, keys)
        for policy in producing.POLICIES
        for keys in (hot_key.ONE, hot_key.EACH)
    ]
    return setting.trial("hot-key", lines, *measures)
