"""What a run leaves in results/: raw figures, a page of tables, and plots. `full` is for keeping, the rest is not."""

from __future__ import annotations

from pathlib import Path

from bench import record as records
from bench.plots import draw
from bench.record import Record
from bench.report import as_page

FOLDER = Path(__file__).parent / "results"
FULL, LATEST = "full", "latest"


def keep(record: Record, name: str, folder: Path) -> None:
    """Write all of it, in place of what was there under that name."""
    folder.mkdir(parents=True, exist_ok=True)
    records.save(record, folder / f"{name}.json")
    _picture(record, name, folder)


def redraw(name: str, folder: Path) -> None:
    """Make tables and plots again of what was measured."""
    _picture(records.load(folder / f"{name}.json"), name, folder)


def _picture(record: Record, name: str, folder: Path) -> None:
    for old in folder.glob(f"{name}-*.svg"):
        old.unlink()
    plots = draw(record)
    for subject, picture in plots.items():
        (folder / f"{name}-{subject}.svg").write_text(picture)
    page = as_page(record, [(subject, f"{name}-{subject}.svg") for subject in plots])
    (folder / f"{name}.md").write_text(page)
