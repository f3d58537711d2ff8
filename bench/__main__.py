"""`python -m bench`: takes the figures, prints them beside the bare engine's and keeps them in results/."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from bench import machine
from bench.contests import STORES, Contest, contest
from bench.figures import Trial
from bench.report import Report
from bench.runner import Progress, Runner, steps
from bench.trials import QUICK, Scale, Trials

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PATIENCE = 45.0
"""Seconds to wait in all for the machine to become idle."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--store", type=click.Choice(list(STORES)), default="sqlite", show_default=True, help="On which store."
)
@click.option("--runs", type=click.IntRange(1), help="How often each figure is taken. [default: 3; quick: 1]")
@click.option("--only", metavar="NAME,…", help="Only these trials; --list names them.")
@click.option("--list", "listing", is_flag=True, help="Name the trials, and end.")
@click.option("--quick", is_flag=True, help="One run, less of everything, no peers.")
@click.option("--peers/--no-peers", default=True, help="Measure other job queues, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    store: str, runs: int | None, only: str | None, listing: bool, quick: bool, peers: bool, as_json: bool
) -> None:
    """Measure onejob beside the bare engine and its peers. Aims are judged, but being slow is no failure."""
    started = time.monotonic()
    notes = list[str]()
    scale = QUICK if quick else Scale()
    runs = runs or (1 if quick else 3)
    with _scratch() as scratch:

        def trials(*, with_peers: bool) -> tuple[Contest, list[Trial]]:
            field = contest(store, scratch, notes, scale.stamped, with_peers=with_peers)
            return field, _chosen(list(Trials(field, scale, scratch / "filled")), only)

        field, chosen = trials(with_peers=False)
        if listing:
            print("\n".join(trial.name for trial in chosen))
            return
        if peers and not quick and not STORES[store].isdisjoint(trial.name for trial in chosen):
            notes.clear()
            field, chosen = trials(with_peers=True)
        engine = field.engine
        with closing(engine), _progress(steps(chosen, runs)) as progress:
            runner = Runner(scratch, engine.forget, machine.Idleness(PATIENCE), progress)
            results = runner.run(chosen, runs)
            settings = {"engine": f"{engine.name} ({engine.durability})", "runs": runs}
        taken = {"seconds": round(time.monotonic() - started)}
        report = Report(chosen, results, machine.describe(scratch), {**settings, **taken}, notes)
    data = json.dumps(report.as_data(), indent=2, ensure_ascii=False)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{store}.json").write_text(data + "\n")
    print(data if as_json else report.as_text())
    sys.exit(1 if results.failures else 0)


def _chosen(trials: list[Trial], only: str | None) -> list[Trial]:
    if only is None:
        return trials
    names = [name.strip() for name in only.split(",")]
    known = [trial.name for trial in trials]
    for name in names:
        if name not in known:
            raise click.UsageError(f"There is no trial {name!r}: there are {', '.join(known)}.")
    return [trial for trial in trials if trial.name in names]


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
