"""The figures as tables: for a terminal, and as a page of Markdown. Nothing here measures or judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.aims import PEERS
from bench.figures import Unit, is_better
from bench.record import Figure, Record

_HEAD = ("", "ours", "beside", "ratio", "aim", "")
_VERDICTS = {True: "ok", False: "miss", None: ""}
BEHIND = "behind"
TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "valkey": "Valkey"}


def as_text(record: Record) -> str:
    """A table for each store, and below them what one should know."""
    tables = [[TITLES[store], *_aligned([_HEAD, *_rows(record, store)]), ""] for store in _stores(record)]
    return "\n".join([*(line for table in tables for line in table), *standing(record), *record.remarks()])


def as_page(record: Record, plots: Sequence[tuple[str, str]]) -> str:
    """A page: all stores side by side, then each with whom it is held against, then the circumstances.

    `plots` are titles and file names beside the page.
    """
    parts = ["# Figures", "", *(part for line in standing(record) for part in (line, ""))]
    parts += [*_overview(record), ""]
    parts += [line for title, name in plots for line in (f"![{title}]({name})", "")]
    for store in _stores(record):
        rows = _rows(record, store)
        parts += [f"## {TITLES[store]}", "", *piped([_HEAD, *rows]), ""]
    parts += ["## Circumstances", "", *[f"- {remark}" for remark in record.remarks()]]
    return "\n".join(parts) + "\n"


def standing(record: Record) -> list[str]:
    """In how many rows we stand beside a peer, and in which of them he is ahead; nothing if there was none."""
    rows = [figure for figure in record.figures if _is_contest(figure)]
    behind = [figure for figure in rows if _is_behind(figure)]
    ahead: dict[str, list[str]] = {}
    for figure in behind:
        ahead.setdefault(f"{TITLES[figure.store]}, {figure.title}", []).append(figure.beside or "")
    where = "; ".join(f"{line} ({', '.join(names)})" for line, names in ahead.items())
    found = f"{BEHIND.capitalize()} a peer in {len(behind)} of {len(rows)} rows"
    return [f"{found}: {where}." if behind else f"{found}."] if rows else []


def number(value: float, unit: Unit) -> str:
    """As many digits as mean something."""
    match unit:
        case Unit.RATE:
            return f"{value / 1000:.1f}k" if value >= 1_000 else f"{value:.0f}"
        case Unit.LATENCY | Unit.LOAD:
            return f"{value:.2f}"
        case Unit.SIZE:
            return f"{value:.0f}"
        case Unit.COST | Unit.MEMORY:
            return f"{value:.1f}"
        case Unit.COMMITS:
            return f"{value:.3f}"


def piped(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table of Markdown; the first row is its head."""
    head, *others = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [head, "|" + " --- |" * len(rows[0]), *others]


def _overview(record: Record) -> list[str]:
    """Ours on every store; in brackets, how many of its aims a figure meets."""
    stores = _stores(record)
    cells: dict[str, dict[str, str]] = {}
    for store in stores:
        for title, figures in _by_title(record, store):
            cells.setdefault(title, {})[store] = _summary(figures)
    rows = [(title, *[found.get(store, "") for store in stores]) for title, found in cells.items()]
    return piped([("ours", *[TITLES[store] for store in stores]), *rows])


def _summary(figures: Sequence[Figure]) -> str:
    first = figures[0]
    judged = [figure.met for figure in figures if figure.met is not None]
    verdict = f" ({sum(judged)} of {len(judged)})" if judged else ""
    return _range(first.ours, first.unit, f" {first.unit}") + verdict


def _rows(record: Record, store: str) -> list[tuple[str, ...]]:
    return [
        _row(figure, first=place == 0)
        for _, figures in _by_title(record, store)
        for place, figure in enumerate(figures)
    ]


def _by_title(record: Record, store: str) -> Iterator[tuple[str, list[Figure]]]:
    found: dict[str, list[Figure]] = {}
    for figure in record.figures:
        if figure.store == store:
            found.setdefault(figure.title, []).append(figure)
    return iter(found.items())


def _row(figure: Figure, *, first: bool) -> tuple[str, ...]:
    beside = "" if figure.beside is None else f"{figure.beside}: {_range(figure.theirs, figure.unit)}"
    return (
        figure.title if first else "",
        _range(figure.ours, figure.unit, f" {figure.unit}") if first else "",
        beside,
        "" if figure.ratio is None else f"{figure.ratio:.3g}",
        _aim(figure),
        _verdict(figure),
    )


def _verdict(figure: Figure) -> str:
    """Whether the aim was met, and whether a peer is ahead, be there an aim or not."""
    words = _VERDICTS[figure.met], BEHIND if _is_behind(figure) else ""
    return ", ".join(filter(None, words))


def _is_behind(figure: Figure) -> bool:
    return _is_contest(figure) and is_better(1.0, figure.unit, than=figure.ratio or 0.0)


def _is_contest(figure: Figure) -> bool:
    """Who needs fewer transactions is not ahead for that: they are shown to explain the rest."""
    return figure.beside in PEERS and figure.ratio is not None and figure.unit is not Unit.COMMITS


def _range(ends: Sequence[float], unit: Unit, suffix: str = "") -> str:
    if not ends:
        return "not measured"
    low, high = number(min(ends), unit), number(max(ends), unit)
    return f"{low}{suffix}" if low == high else f"{low} to {high}{suffix}"


def _aim(figure: Figure) -> str:
    suffix = "" if figure.beside is not None else f" {figure.unit}"
    if figure.at_least is not None:
        return f">= {figure.at_least:g}{suffix}"
    return "" if figure.at_most is None else f"<= {figure.at_most:g}{suffix}"


def _stores(record: Record) -> list[str]:
    return list(dict.fromkeys(figure.store for figure in record.figures))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
