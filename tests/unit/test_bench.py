"""The benchmark's own rules, on readings that are made up, and one very small run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import dist
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

import bench.__main__ as command
from bench import aims, contests, peers, plots, record, report, results
from bench.__main__ import _chosen, _peers
from bench.contests import STORES, Company, Entry, contest
from bench.costs import BULK, DRAIN, Cost, Meter, Place, StoreCosts, one_by_one, summary
from bench.costs_page import as_tables, limit
from bench.engines.sqlite import SqliteEngine
from bench.figures import BARE, OURS, PERCENTS, Aim, Line, Reading, Samples, Trial, Unit, percentiles
from bench.gauges.sqlite import FRAME_HEADER, gauge
from bench.peers import Environment, PeerMissing
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


def test_a_row_in_which_a_peer_is_faster_says_so_whether_or_not_there_is_an_aim() -> None:
    found = record_of(
        *[
            reading("drain", who, value)
            for who, value in ((OURS, 2e3), ("SAQ", 1e3), ("RQ", 3e3), (BARE, 9e3))
        ],
        *[reading("drain", "BullMQ on Node", 2.5e3), reading("drain", aims.PLAIN, 9e3)],
        *[reading("latency-p50", who, value) for who, value in ((OURS, 2.0), ("SAQ", 3.0), ("RQ", 1.5))],
        trial=replace(
            drain_of(Aim("BullMQ on Node", at_least=2), Aim("SAQ"), Aim("RQ"), Aim(BARE), Aim(aims.PLAIN)),
        ),
    )
    assert found.figures[0].beside == "BullMQ on Node"
    page = report.as_page(found, [])
    assert "| BullMQ on Node: 2.5k | 0.8 | >= 2 | miss, behind |" in page
    assert "| SAQ: 1.0k | 2 |  |  |" in page
    assert "| RQ: 3.0k | 0.667 |  | behind |" in page
    assert "| bare: 9.0k | 0.222 |  |  |" in page
    assert f"| {aims.PLAIN}: 9.0k | 0.222 |  |  |" in page
    assert "Behind a peer in 2 of 3 rows: SQLite, drain of no-op jobs (BullMQ on Node, RQ)." in page


@pytest.mark.parametrize(("ours", "verdict"), [(1.0, ""), (2.0, "behind"), (1.5, "")])
def test_of_latencies_the_lower_one_is_ahead(ours: float, verdict: str) -> None:
    trial = replace(drain_of(), lines=(Line("wait", "a wait", Unit.LATENCY, (Aim("RQ"),)),))
    found = record_of(
        *[replace(reading("wait", who, value), trial="drain") for who, value in ((OURS, ours), ("RQ", 1.5))],
        trial=trial,
    )
    assert report.as_page(found, []).splitlines()[2] == f"Behind a peer in {int(bool(verdict))} of 1 rows" + (
        ": SQLite, a wait (RQ)." if verdict else "."
    )


def test_transactions_explain_and_are_no_contest() -> None:
    trial = replace(drain_of(), lines=(Line("c", "transactions", Unit.COMMITS, (Aim("Oban"),)),))
    found = record_of(
        *[replace(reading("c", who, value), trial="drain") for who, value in ((OURS, 0.03), ("Oban", 0.02))],
        trial=trial,
    )
    assert "ehind" not in report.as_text(found)
    assert "| transactions | 0.030 commits/job | Oban: 0.020 | 1.5 |  |  |" in report.as_page(found, [])


@pytest.mark.parametrize(("value", "shown"), [(12_345, "12.3k"), (1_000, "1.0k"), (999, "999"), (18.6, "19")])
def test_a_rate_has_digits_that_say_something_however_low_it_is(value: float, shown: str) -> None:
    assert report.number(value, Unit.RATE) == shown


def test_all_who_may_be_in_one_plot_have_colours_that_can_be_told_apart() -> None:
    most = max(len(contests.peers(store)) for store in STORES) + 1
    assert len(plots.COLOURS) >= most
    parts = [tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for colour in plots.COLOURS]
    distances = [dist(one, other) for one, other in combinations(parts, 2)]
    assert min(distances) > 60


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
    entry = Entry(Company.ALL)
    contest("postgres", tmp_path, entry)
    assert f"{kinds[0].name} is left out: it needs Node.js, which is not here" in entry.notes
    assert len(entry.notes) == len(kinds)


def test_a_peer_with_something_missing_is_installed_and_one_that_stays_incomplete_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["", "1.2", "", ""])
    commands: list[list[str]] = []

    def asked(command: list[str]) -> subprocess.CompletedProcess[str]:
        version = next(answers)
        return subprocess.CompletedProcess(command, 0 if version else 1, version, "no module of that name")

    monkeypatch.setattr(peers, "VENVS", tmp_path)
    monkeypatch.setattr(peers, "_asked", asked)
    monkeypatch.setattr(peers, "_run", commands.append)
    assert peers.installed("queue", "queue[fast]>=1", "loop").version == "1.2"
    assert [command[-2:] for command in commands] == [
        ["venv", str(tmp_path / "queue")],
        ["queue[fast]>=1", "loop"],
    ]
    with pytest.raises(PeerMissing, match="not complete when installed: no module of that name"):
        peers.installed("queue", "queue[fast]>=1", "loop")


@pytest.mark.parametrize(
    ("requirement", "answer"),
    [
        ("queue>=1", "1.2"),
        ("queue[fast]>=1", "1.2"),
        ("queue[slow]", "No package metadata was found for sloth"),
        ("queue[new]", "fast>=9 is wanted, 1.0 is there"),
    ],
)
def test_an_environment_is_complete_with_all_its_extras(
    requirement: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extras = ['fast>=1; extra == "fast"', 'sloth; extra == "slow"', 'fast>=9; extra == "new"']
    for name, version, needs in ("queue", "1.2", extras), ("fast", "1.0", []):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        metadata += [f"Requires-Dist: {need}" for need in needs]
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text("\n".join(metadata))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = peers._asked([sys.executable, "-c", peers._VERSION_IF_COMPLETE, "queue", requirement])
    assert answer in found.stdout + found.stderr
    assert (found.returncode == 0) is (answer == "1.2")


def test_a_python_that_is_not_here_keeps_a_peer_out() -> None:
    assert peers._interpreter("") == peers._interpreter("3.11") == sys.executable
    with pytest.raises(PeerMissing, match=r"needs Python 3\.99"):
        peers._interpreter("3.99")


def test_only_peers_that_are_named_are_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment(tmp_path, "1.0")
    kinds = [replace(kind, install=lambda: environment) for kind in contests.valkey.KINDS]
    monkeypatch.setattr(contests.valkey, "KINDS", kinds)
    said: list[str] = []
    entry = Entry(Company.ALL, peers=_peers("rq, bullmq ON node"), progress=said.append)
    contest("valkey", tmp_path, entry)
    assert said == ["looking for BullMQ on Node", "looking for RQ"]
    assert [note.partition(":")[0] for note in entry.notes] == ["BullMQ on Node 1.0", "RQ 1.0"]
    with pytest.raises(click.UsageError, match="no peer 'sidekiq'"):
        _peers("rq,sidekiq")
    assert _peers("all") is None


@pytest.mark.parametrize("store", ["postgres", "valkey"])
def test_no_peer_is_in_a_trial_without_a_place_in_the_report(store: str) -> None:
    of_store, kinds = {
        "postgres": (aims.POSTGRES, contests.postgres.KINDS),
        "valkey": (aims.VALKEY, contests.valkey.KINDS),
    }[store]
    lines = {"keys": "keys-0", "latency": "latency-p50", "load": "load-p50"}
    for kind in kinds:
        for trial in kind.trials:
            shown = {aim.beside for aim in of_store[lines.get(trial, trial)]}
            assert kind.name in shown, (kind.name, trial)
            assert trial in STORES[store]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "full"),
        (["--runs=2"], "full"),
        (["--runs=1"], "latest"),
        (["--peers=RQ"], "latest"),
        (["--no-peers"], "latest"),
        (["--only=drain"], "latest"),
        (["--store=sqlite"], "latest"),
        (["--ours", "--runs=2"], "latest"),
        (["--runs=1", "--name=mine"], "mine"),
    ],
)
def test_a_run_that_is_cut_short_is_kept_under_its_name_and_only_two_whole_runs_are_full(
    words: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(runner: Runner, trials: list[Trial], runs: int, into: Results) -> None:
        into.readings.append(reading("drain", OURS, 1.0))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Runner, "run", cut)
    monkeypatch.setattr(command, "_entered", lambda *_: ([drain_of(Aim())], {}))
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(command.main, [*words, "--into", str(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 0, done.output
    kept = record.load(tmp_path / f"{name}.json")
    assert kept.notes == ["the run was cut short"]
    assert [figure.ours for figure in kept.figures] == [[1.0, 1.0]]


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
    assert set(found.seconds) == {"sqlite one-by-one"}
    assert {file.name for file in tmp_path.iterdir()} == {"latest.json", "latest.md"}


COSTS = {
    "enqueue one by one": Cost(1.0, 1.29, 644.4, 204.3, 269.9),
    BULK: Cost(0.001, 0.00005, 543.2, 6.66, 5.0),
    DRAIN: Cost(0.01, 0.016, 1_283.0, 30.0, 20.0),
}


def test_costs_are_shown_by_store_and_lead_to_a_limit() -> None:
    shown = as_tables([StoreCosts("postgres", COSTS, durable=150.0, round_trip=50.0)])
    assert "| enqueue one by one | 1.00 | 1.29 | 644 | 204.3 | 269.9 |" in shown
    assert "| enqueue in bulk, 1,000 a call | 0.001 | 0.00005 | 543 | 6.7 | 5.0 |" in shown
    assert "| PostgreSQL: enqueue in bulk, 1,000 a call | 5.0 | 6.7 | 150 | 50 | 1000 | 84k |" in shown
    assert f"| PostgreSQL: {DRAIN} | 20.0 | 30.0 | 150 | 50 | 100 | 31k |" in shown


@pytest.mark.parametrize("store", STORES)
def test_the_slower_side_is_the_limit_of_a_worker_that_has_jobs_in_stock_and_the_sum_that_of_who_waits(
    store: str,
) -> None:
    apart = StoreCosts(store, COSTS, durable=0.0, round_trip=100.0)
    assert limit(apart, DRAIN) == pytest.approx(1e6 / (30 + 1))
    assert limit(apart, BULK) == pytest.approx(1e6 / (5 + 6.66 + 0.1))
    slow_client = {**COSTS, DRAIN: replace(COSTS[DRAIN], client=40.0)}
    assert limit(replace(apart, costs=slow_client), DRAIN) == pytest.approx(1e6 / 40)


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
    field = contest(store, home, Entry(company))
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
