"""The benchmark's own rules, on readings that are made up, and one very small run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import aims, contests, plots, record, report, results
from bench.__main__ import _chosen
from bench.contests import STORES, Company, Counts, contest
from bench.costs import DRAIN, Cost, Meter, Place, StoreCosts, one_by_one, summary
from bench.costs_page import as_tables, limit
from bench.engines.sqlite import SqliteEngine
from bench.figures import BARE, OURS, PERCENTS, Aim, Line, Reading, Samples, Trial, Unit, percentiles
from bench.gauges.sqlite import FRAME_HEADER, gauge
from bench.peers import PeerMissing
from bench.record import Record, recorded
from bench.runner import Results, Runner, steps
from bench.trials import SUBSETS, trials
from bench.trials.setting import SMALL, Scale, Setting
from onejob.stores.sqlite.store import SqliteStore

ROOT = Path(__file__).parents[2]
MACHINE: dict[str, str | int] = {"cpu": "made up", "cores": 2}


class Idle:
    """A machine on which nobody else does anything."""

    def wait(self) -> float:
        return 1.0


def reading(line: str, who: str, value: float, run: int = 0, store: str = "sqlite") -> Reading:
    return Reading(store, line.partition("-p")[0], line, who, run, value, idle=0.5, seconds=1.0)


def drain_of(*aims: Aim) -> Trial:
    return Trial("sqlite", "drain", (Line("drain", "drain of no-op jobs", Unit.RATE, aims),), ())


def record_of(*readings: Reading, trial: Trial | None = None, failures: tuple[str, ...] = ()) -> Record:
    results = Results(list(readings), list(failures))
    return recorded([trial or drain_of(Aim(BARE, at_least=0.5))], results, MACHINE, {"runs": 3}, [])


def test_a_ratio_is_that_of_the_median_run_so_that_one_noisy_run_decides_nothing() -> None:
    ours, bare = (1000, 10, 1000), (1000, 1000, 1000)
    found = record_of(
        *[reading("drain", OURS, value, run) for run, value in enumerate(ours)],
        *[reading("drain", BARE, value, run) for run, value in enumerate(bare)],
    )
    (figure,) = found.figures
    assert (figure.ours, figure.ratio, figure.met) == ([10, 1000], 1.0, True)


def test_one_who_was_to_be_beaten_and_was_not_measured_is_shown_as_missing() -> None:
    trial = drain_of(Aim(BARE), Aim("a peer", at_least=2.0), Aim("another"))
    found = record_of(reading("drain", OURS, 5_000), reading("drain", BARE, 10_000), trial=trial)
    assert [figure.beside for figure in found.figures] == [BARE, "a peer"]
    assert "a peer: not measured" in report.as_text(found)


def test_readings_of_one_store_are_not_taken_for_those_of_another() -> None:
    found = record_of(reading("drain", OURS, 5_000), reading("drain", OURS, 1.0, store="valkey"))
    assert found.figures[0].ours == [5_000, 5_000]


def test_what_is_kept_can_be_read_again_and_names_neither_paths_nor_hosts(tmp_path: Path) -> None:
    failure = "no file '/home/somebody/onejob/x.db' for https://packages.example.org/simple or valkey://10.0.0.1:6379/3"
    found = record_of(reading("drain", OURS, 5_000), failures=(failure,))
    results.keep(found, "mine", tmp_path)
    assert record.load(tmp_path / "mine.json") == found
    kept = "".join(file.read_text() for file in tmp_path.iterdir())
    assert "no file '…' for … or …" in kept
    assert not any(word in kept for word in ("somebody", "example.org", "10.0.0.1", str(ROOT)))


def test_tables_and_plots_can_be_made_again_of_the_raw_figures_alone(tmp_path: Path) -> None:
    results.keep(record_of(reading("drain", OURS, 5_000), reading("drain", BARE, 9_000)), "mine", tmp_path)
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for file in tmp_path.glob("mine*"):
        if file.suffix != ".json":
            file.unlink()
    results.redraw("mine", tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept
    assert set(kept) == {"mine.json", "mine.md", "mine-throughput.svg"}


def test_the_page_shows_all_stores_side_by_side_and_then_each_with_whom_it_is_held_against() -> None:
    trials = [drain_of(Aim(BARE, at_least=0.5)), replace(drain_of(Aim()), store="valkey")]
    readings = [
        reading("drain", OURS, 2_000),
        reading("drain", BARE, 10_000),
        reading("drain", OURS, 9_000, store="valkey"),
    ]
    page = report.as_page(recorded(trials, Results(readings), MACHINE, {"runs": 1}, ["a note"]), [])
    assert "| drain of no-op jobs | 2.0k jobs/s (0 of 1) | 9.0k jobs/s |" in page
    assert "| drain of no-op jobs | 2.0k jobs/s | bare: 10.0k | 0.2 | >= 0.5 | miss |" in page
    assert page.index("## SQLite") < page.index("## Valkey") < page.index("- a note")


def test_percentiles_go_from_the_median_to_the_worst_in_milliseconds() -> None:
    found = percentiles("latency", OURS, [number / 1000 for number in range(1_000, 0, -1)])
    assert found["latency-p50", OURS] == pytest.approx(501)
    assert found["latency-p99.9", OURS] == pytest.approx(1_000)
    assert percentiles("latency", OURS, [0.001])["latency-p99.9", OURS] == pytest.approx(1)


def test_plots_are_drawn_of_what_was_measured_and_of_nothing_else() -> None:
    assert plots.draw(record_of()) == {}
    curve = [reading(f"latency-p{percent:g}", OURS, 0.3 + percent / 50) for percent in PERCENTS]
    sizes = [reading("waiting-claim", f"{10**power:,}", 20 + power) for power in (3, 4, 5, 6)]
    drawn = plots.draw(
        record_of(reading("drain", OURS, 5e3), reading("drain", "a <peer>", 1e3), *curve, *sizes)
    )
    assert set(drawn) == {"throughput", "latency", "growth"}
    words = {name: _words(ElementTree.fromstring(picture)) for name, picture in drawn.items()}
    assert {"ours", "5.0k", "a <peer>", "1.0k"} <= words["throughput"]
    assert {"ours", "p50", "p99.9"} <= words["latency"]
    assert {"claim", "1,000", "1,000,000"} <= words["growth"]


def test_other_figures_of_ours_are_no_rivals_in_the_plot_of_throughput() -> None:
    ours = reading("drain-two", OURS, 5e3), reading("drain-two", aims.ONE_WORKER, 4e3)
    assert aims.ONE_WORKER not in plots.draw(record_of(*ours, reading("drain-two", BARE, 9e3)))["throughput"]


def test_without_rivals_there_is_no_plot_of_throughput() -> None:
    alone = [reading("drain", OURS, 5e3, store=store) for store in ("sqlite", "valkey")]
    assert plots.draw(record_of(*alone, reading("bulk", OURS, 5e3))) == {}


def test_one_figure_that_fails_is_reported_and_keeps_no_other_from_being_taken(tmp_path: Path) -> None:
    def fails(folder: Path) -> Samples:
        raise RuntimeError("it broke")

    found = _run(tmp_path, fails, lambda folder: {("drain", OURS): 1.0})
    assert [reading.value for reading in found.readings] == [1.0, 1.0]
    assert found.failures == [
        "sqlite, drain, run 1: RuntimeError: it broke",
        "sqlite, drain, run 2: RuntimeError: it broke",
    ]


def test_a_run_that_is_cut_short_leaves_what_it_had(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> Samples:
        raise KeyboardInterrupt

    found = Results()
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, lambda folder: {("drain", OURS): 1.0}, interrupted, into=found)
    assert [reading.value for reading in found.readings] == [1.0]


def test_another_one_goes_first_in_each_run(tmp_path: Path) -> None:
    order: list[str] = []

    def measure(name: str) -> Callable[[Path], Samples]:
        return lambda folder: order.append(name) or {}

    _run(tmp_path, measure("ours"), measure("bare"))
    assert order == ["ours", "bare", "bare", "ours"]


@pytest.mark.parametrize("store", STORES)
def test_every_trial_is_in_a_subset_and_every_aim_belongs_to_a_line(store: str, tmp_path: Path) -> None:
    entered = _trials(store, tmp_path, Company.NO_PEERS)
    names = [trial.name for trial in entered]
    assert set(names) <= {name for members in SUBSETS.values() for name in members}
    assert _chosen(names, "enqueues,rest") == ["bulk", "concurrent", "one-by-one", "rest"]
    keys = [line.key for trial in entered for line in trial.lines]
    assert len(set(keys)) == len(keys)
    of_store = {"sqlite": aims.SQLITE, "postgres": aims.POSTGRES, "valkey": aims.VALKEY}[store]
    assert set(of_store) <= set(keys)


def test_alone_we_are_held_against_nobody_else(tmp_path: Path) -> None:
    for store in STORES:
        for trial in _trials(store, tmp_path, Company.OURS):
            for line in trial.lines:
                beside = {aim.beside for aim in line.aims} - {None}
                sizes = {f"{size:,}" for size in (*SMALL.sizes, *SMALL.fan_in)}
                assert beside <= aims.OUR_OWN | sizes, line.key


def test_a_peer_that_cannot_be_installed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise PeerMissing("needs Node.js, which is not here")

    kinds = [replace(kind, install=missing) for kind in contests.postgres.KINDS]
    monkeypatch.setattr(contests.postgres, "KINDS", kinds)
    notes = list[str]()
    contest("postgres", tmp_path, notes, Counts(1, 1), Company.ALL)
    assert f"{kinds[0].name} is left out: it needs Node.js, which is not here" in notes
    assert len(notes) == len(kinds)


def test_a_small_run_prints_a_table_and_leaves_its_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--ours", "--store=sqlite", "--only=one-by-one", "--into", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "enqueue one by one" in done.stdout
    found = record.load(tmp_path / "latest.json")
    assert [(each.store, each.line, each.who) for each in found.readings] == [("sqlite", "one-by-one", OURS)]
    assert found.failures == []
    assert {file.name for file in tmp_path.iterdir()} == {"latest.json", "latest.md"}


COSTS = {
    "enqueue one by one": Cost(1.0, 1.29, 644.4, 204.3, 269.9),
    "enqueue in bulk, 1,000 a call": Cost(0.001, 0.00005, 543.2, 6.66, 5.0),
    DRAIN: Cost(0.01, 0.016, 1_283.0, 30.0, 20.0),
}


def test_costs_are_shown_by_store_and_lead_to_a_limit() -> None:
    shown = as_tables([StoreCosts("postgres", COSTS, durable=150.0, round_trip=50.0, overlaps=False)])
    assert "| enqueue one by one | 1.00 | 1.29 | 644 | 204.3 | 269.9 |" in shown
    assert "| enqueue in bulk, 1,000 a call | 0.001 | 0.00005 | 543 | 6.7 | 5.0 |" in shown
    assert "| PostgreSQL | 20.0 | 30.0 | 150 | 50 | 100 | 19k |" in shown


def test_the_slower_side_is_the_limit_where_both_work_at_once_and_else_their_sum() -> None:
    apart = StoreCosts("valkey", COSTS, durable=0.0, round_trip=100.0, overlaps=True)
    assert limit(apart) == pytest.approx(1e6 / (30 + 1))
    assert limit(replace(apart, overlaps=False)) == pytest.approx(1e6 / (20 + 30 + 1))


def test_of_rounds_the_least_time_and_the_median_count_are_taken() -> None:
    rounds = [Cost(1, 2, 3, 30, 5), Cost(9, 2, 300, 10, 8), Cost(2, 3, 4, 20, 9)]
    assert summary(rounds) == Cost(2, 2, 4, 10, 5)


def test_sqlite_is_watched_commit_by_commit_and_nothing_is_watched_afterwards(tmp_path: Path) -> None:
    unwatched = SqliteStore._connect
    with gauge("") as watch:
        meter = Meter(watch)
        one_by_one(Place(SqliteEngine(), tmp_path, meter), 5)
    (cost,) = meter.found
    assert (cost.calls, cost.commits) == (0.0, 1.0)  # the thread that asks commits by itself
    assert round(cost.bytes * 5) % (4_096 + FRAME_HEADER) == 0
    assert SqliteStore._connect is unwatched


def test_a_small_run_of_costs_prints_tables() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--costs", "--quick", "--store=sqlite", "--runs=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "### SQLite" in done.stdout
    assert f"| {DRAIN} | 0.0" in done.stdout


def _trials(store: str, home: Path, company: Company) -> list[Trial]:
    field = contest(store, home, [], Counts(1, 1), company)
    return trials(Setting(store, field, SMALL if company is Company.OURS else Scale(), home))


def _run(scratch: Path, *measures: Callable[[Path], Samples], into: Results | None = None) -> Results:
    trial = replace(drain_of(Aim()), measures=measures)
    found = Results() if into is None else into
    said: list[str] = []
    runner = Runner(scratch, {"sqlite": lambda folder: None}, Idle(), said.append)  # type: ignore[arg-type]
    runner.run([trial], 2, found)
    assert len(said) == steps([trial], 2)
    return found


def _words(picture: ElementTree.Element) -> set[str]:
    return {element.text or "" for element in picture.iter() if element.tag.endswith("text")}
