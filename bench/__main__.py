"""`python -m bench`: takes the figures, prints them, and leaves tables, plots and raw figures in results/."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import click

from bench import machine, results
from bench.contests import STORES, Company, Contest, Counts, Entry, contest, peers
from bench.costs import ROWS, StoreCosts, measured
from bench.costs_page import as_tables
from bench.figures import Trial
from bench.record import as_json, recorded
from bench.report import as_text
from bench.runner import Progress, Results, Runner, steps
from bench.trials import SUBSETS, trials
from bench.trials.setting import QUICK, SMALL, Scale, Setting

HERE = Path(__file__).parent
ALL = "all"
PATIENCE = 45.0
"""Seconds to wait for the machine to become idle, in all and for each store."""
ENOUGH_RUNS = 2
"""For figures that are to be kept: one run alone says little."""
ROUNDS = 5
"""In which costs are taken."""
HASTE = 2.0
"""The same where all has to be done in three minutes."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--store",
    "stores",
    metavar="NAME,…",
    default=ALL,
    show_default=True,
    help=f"On which stores: {', '.join(STORES)}, all.",
)
@click.option("--runs", type=click.IntRange(1), help="How often each figure is taken. [default: 3; else 1]")
@click.option("--only", metavar="NAME,…", help="Only these trials or subsets; --list names them.")
@click.option("--list", "listing", is_flag=True, help="Name the trials, subsets and peers, and end.")
@click.option("--quick", is_flag=True, help="One run, less of everything, no peers.")
@click.option("--ours", is_flag=True, help="Ourselves alone, in small: all stores in under three minutes.")
@click.option(
    "--peers",
    "who",
    metavar="NAME,…",
    is_flag=False,
    flag_value=ALL,
    default=ALL,
    show_default=True,
    help="Which other job queues; --list names them.",
)
@click.option("--no-peers", is_flag=True, help="No other job queues.")
@click.option(
    "--name", help="What the files in results/ are called. [default: full, or latest if it is less]"
)
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=results.FOLDER,
    help="Where they go instead of results/.",
)
@click.option("--costs", is_flag=True, help="What one job costs instead, on either side, and end.")
@click.option("--redraw", is_flag=True, help="Make tables and plots again of the raw figures, and end.")
@click.option("--json", "in_json", is_flag=True, help="Print JSON.")
def main(
    stores: str,
    runs: int | None,
    only: str | None,
    listing: bool,
    quick: bool,
    ours: bool,
    who: str,
    no_peers: bool,
    name: str | None,
    into: Path,
    costs: bool,
    redraw: bool,
    in_json: bool,
) -> None:
    """Measure onejob beside the bare engines and its peers. Aims are judged, but being slow is no failure."""
    if redraw:
        results.redraw(name or results.FULL, into)
        return
    if costs:
        print(_costs(_stores(stores), runs or ROUNDS, share=0.1 if quick or ours else 1.0))
        return
    scale = SMALL if ours else QUICK if quick else Scale()
    chosen_peers = _peers(who)
    company = Company.OURS if ours else Company.NO_PEERS if quick or listing or no_peers else Company.ALL
    runs = runs or (3 if scale == Scale() else 1)
    is_everything = scale == Scale() and company is Company.ALL and (only, stores, who) == (None, ALL, ALL)
    name = name or (results.FULL if is_everything and runs >= ENOUGH_RUNS else results.LATEST)
    signal.signal(signal.SIGTERM, _cut_short)
    started = time.monotonic()
    entry = Entry(company, Counts(scale.stamped, scale.loaded), chosen_peers)
    with _scratch() as scratch, ExitStack() as engines:
        chosen, contests = _entered(_stores(stores), only, scale, entry, scratch)
        if listing:
            print(_names(chosen, _stores(stores)))
            return
        for field in contests.values():
            engines.enter_context(closing(field.engine))
        idleness = machine.Idleness(HASTE, look=0.05) if ours else machine.Idleness(PATIENCE * len(contests))
        # Asked for now: a server may be gone when a run is cut short.
        durability = {store: field.engine.durability for store, field in contests.items()}
        found = Results()
        with _progress(steps(chosen, runs)) as progress:
            forget = {store: field.engine.forget for store, field in contests.items()}
            try:
                Runner(scratch, forget, idleness, progress).run(chosen, runs, found)
            except KeyboardInterrupt:
                entry.notes.append("the run was cut short")
        settings = {"measured": company.value, "runs": runs, "seconds": round(time.monotonic() - started)}
        settings |= durability
        record = recorded(chosen, found, machine.describe(scratch), settings, entry.notes)
    results.keep(record, name, into)
    print(as_json(record).decode() if in_json else as_text(record))
    sys.exit(1 if found.failures else 0)


def _costs(stores: Sequence[str], rounds: int, share: float) -> str:
    """Tables of what one job costs, from rounds that have a share of the usual jobs."""
    found: list[StoreCosts] = []
    with _scratch() as scratch, _progress(len(stores) * rounds * len(ROWS)) as progress:
        for store in stores:
            home = scratch / store
            home.mkdir()
            with closing(contest(store, home, Entry(Company.OURS)).engine) as engine:
                found.append(measured(engine, home, rounds, share, progress))
    return as_tables(found)


def _cut_short(*_: object) -> None:
    """Who is told to end reports what there is; being told twice changes nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _entered(
    stores: Sequence[str], only: str | None, scale: Scale, entry: Entry, scratch: Path
) -> tuple[list[Trial], dict[str, Contest]]:
    """The chosen trials, each on all stores before the next, and the contests that they belong to."""

    def enter(store: str, entry: Entry) -> tuple[Contest, list[Trial]]:
        home = scratch / store
        home.mkdir(exist_ok=True)
        field = contest(store, home, entry)
        return field, trials(Setting(store, field, scale, home / "filled"))

    known = {store: enter(store, Entry(Company.OURS))[1] for store in stores}
    names = _chosen(list(dict.fromkeys(trial.name for each in known.values() for trial in each)), only)
    entries = dict.fromkeys(stores, entry)
    for store in stores:
        if entry.company is Company.ALL and STORES[store].isdisjoint(names):
            entries[store] = replace(entry, company=Company.NO_PEERS)
    contests: dict[str, Contest] = {}
    taken: list[Trial] = []
    invited = sum(each.lets_in(peer) for store, each in entries.items() for peer in peers(store))
    with _progress(invited) as progress:
        for store, each in entries.items():
            contests[store], entered = enter(store, replace(each, progress=progress))
            taken += [trial for trial in entered if trial.name in names]
    return sorted(taken, key=lambda trial: names.index(trial.name)), contests


def _peers(who: str) -> frozenset[str] | None:
    """Their names as they know them; None for all."""
    if who == ALL:
        return None
    known = {peer.lower(): peer for store in STORES for peer in peers(store)}
    names = [name.strip() for name in who.split(",")]
    for name in names:
        if name.lower() not in known:
            raise click.UsageError(f"There is no peer {name!r}: there are {', '.join(known.values())}, all.")
    return frozenset(known[name.lower()] for name in names)


def _stores(stores: str) -> list[str]:
    if stores == ALL:
        return list(STORES)
    names = [name.strip() for name in stores.split(",")]
    for name in names:
        if name not in STORES:
            raise click.UsageError(f"There is no store {name!r}: there are {', '.join(STORES)}, and all.")
    return names


def _chosen(known: list[str], only: str | None) -> list[str]:
    if only is None:
        return known
    chosen = set[str]()
    for name in (word.strip() for word in only.split(",")):
        if name not in known and name not in SUBSETS:
            raise click.UsageError(f"There is no trial {name!r}: there are {', '.join([*known, *SUBSETS])}.")
        chosen.update(SUBSETS.get(name, (name,)))
    return [name for name in known if name in chosen]


def _names(chosen: Sequence[Trial], stores: Sequence[str]) -> str:
    names = list(dict.fromkeys(trial.name for trial in chosen))
    subsets = [f"{subset}: {', '.join(members)}" for subset, members in SUBSETS.items()]
    others = [f"peers on {store}: {', '.join(peers(store))}" for store in stores]
    return "\n".join([*names, "", *subsets, "", *others])


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder beside this file, so that everything is measured on the disk the project lies on."""
    home = HERE / ".scratch"
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _progress(total: int) -> Iterator[Progress]:
    """A bar on stderr where somebody looks at it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total + 1)
        yield lambda what: bar.update(task, advance=1, description=what)


if __name__ == "__main__":
    main()
