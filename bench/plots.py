"""The figures as pictures: throughput as bars, latencies as curves over percentiles, cost as lines over size.

A panel for each store and subject; what was not measured has none. Every value is the median of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.aims import OUR_OWN
from bench.engines import Filling
from bench.figures import OURS, PERCENTS, Reading, Unit
from bench.growth import OPERATIONS, line_key
from bench.record import Record
from bench.report import TITLES, number
from bench.svg import Canvas, Point

RATES = {
    "one-by-one": "enqueue one by one",
    "concurrent": "100 concurrent enqueues",
    "bulk": "bulk enqueue",
    "keys-90": "bulk, 90 % duplicates",
    "drain-10": "drain, concurrency 10",
    "drain": "drain, concurrency 100",
    "drain-two": "drain, two workers",
}
"""The lines of the plot of throughput."""
LATENCIES = {"latency": "idle: enqueue to start", "load": "under load: enqueue to start"}
COLOURS = (
    "#0969da",
    "#bf8700",
    "#1a7f37",
    "#cf222e",
    "#8250df",
    "#00a8a8",
    "#e85aad",
    "#7a4a2a",
    "#7fb800",
    "#6e7781",
    "#ff7f50",
    "#4b3f99",
)
"""One for each who may be in one plot, none like another."""
_BARE_COLOUR = "#6e7781"
_GAP, _PANEL, _NAMES, _BAR = 24, 260, 145, 15
_FRAME_HEIGHT = 170
_LEFT, _BELOW, _ABOVE = 46, 40, 34

Values = Mapping[tuple[str, str, str], float]
"""By store, line, and whose it is."""


def draw(record: Record) -> dict[str, str]:
    """Pictures by name; one for which there are no figures is left out."""
    values = _values(record.readings)
    plots = {"throughput": _throughput(values), "latency": _latency(values), "growth": _growth(values)}
    return {name: str(canvas) for name, canvas in plots.items() if canvas is not None}


def _values(readings: Iterable[Reading]) -> Values:
    found: dict[tuple[str, str, str], list[float]] = {}
    for reading in readings:
        found.setdefault((reading.store, reading.line, reading.who), []).append(reading.value)
    return {of: median(values) for of, values in found.items()}


def _throughput(values: Values) -> Canvas | None:
    """Bars from the fastest to the slowest; ours stand out by their colour. A bar alone says nothing."""
    panels = {
        (store, line): _fastest_first(_contenders(values, store, line)) for store in TITLES for line in RATES
    }
    rows = {line: max(len(panels[store, line]) for store in TITLES) for line in RATES}
    shown = [line for line in RATES if rows[line]]
    if max(rows.values()) < 2:
        return None
    stores = [store for store in TITLES if any(panels[store, line] for line in shown)]
    heights = [_ABOVE + rows[line] * _BAR + 8 for line in shown]
    canvas = Canvas(_GAP + len(stores) * (_PANEL + _NAMES + _GAP), _ABOVE + sum(heights))
    for column, store in enumerate(stores):
        left = _GAP + column * (_PANEL + _NAMES + _GAP)
        canvas.text((left, 20), f"{TITLES[store]}, jobs per second", size=14, bold=True)
        above: float = _ABOVE
        for line, height in zip(shown, heights, strict=True):
            _bars(canvas, (left, above), RATES[line], panels[store, line])
            above += height
    return canvas


def _contenders(values: Values, store: str, line: str) -> list[tuple[str, float]]:
    return [(who, value) for (where, which, who), value in values.items() if (where, which) == (store, line)]


def _fastest_first(contenders: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Without other figures of ours, which are no rivals."""
    rivals = [(who, value) for who, value in contenders if who not in OUR_OWN]
    return sorted(rivals, key=lambda each: -each[1])


def _bars(canvas: Canvas, corner: Point, title: str, contenders: Sequence[tuple[str, float]]) -> None:
    if not contenders:
        return
    left, above = corner
    canvas.text((left, above + 14), title, bold=True)
    longest = contenders[0][1]
    for place, (who, value) in enumerate(contenders):
        top = above + 20 + place * _BAR
        colour = COLOURS[0] if who == OURS else _BARE_COLOUR if who.startswith("bare") else COLOURS[1]
        width = max(1.0, (_PANEL - 50) * value / longest)
        canvas.text((left + _NAMES - 4, top + 10), who, anchor="end", bold=who == OURS)
        canvas.bar((left + _NAMES, top + 1), width, _BAR - 3, colour)
        canvas.text((left + _NAMES + width + 4, top + 10), number(value, Unit.RATE))


@dataclass(frozen=True, slots=True)
class _Curve:
    """A name, and values over places on the x axis."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    curves: tuple[_Curve, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where values are along x, from 0 to 1, and which are named."""

    place: Callable[[float], float]
    marks: Mapping[float, str]


def _latency(values: Values) -> Canvas | None:
    """Milliseconds over percentiles, both so that the tail can be seen."""
    panels = [
        _Panel(f"{TITLES[store]}, {title}, ms", _distributions(values, store, line))
        for line, title in LATENCIES.items()
        for store in TITLES
    ]
    marks = {float(percent): f"p{percent:g}" for percent in PERCENTS}
    worst = -math.log10(1 - PERCENTS[-1] / 100)
    best = -math.log10(1 - PERCENTS[0] / 100)
    axis = _Axis(lambda percent: (-math.log10(1 - percent / 100) - best) / (worst - best), marks)
    return _curves(panels, axis, len(TITLES), lambda value: f"{value:g}", from_zero=False)


def _distributions(values: Values, store: str, line: str) -> tuple[_Curve, ...]:
    names = [who for who, _ in _contenders(values, store, f"{line}-p50")]
    names.sort(key=lambda who: (who != OURS, who))
    return tuple(
        _Curve(who, tuple((percent, values[store, f"{line}-p{percent:g}", who]) for percent in PERCENTS))
        for who in names
    )


def _growth(values: Values) -> Canvas | None:
    """Microseconds over the size of a store: flat is good."""
    panels = [
        _Panel(f"{TITLES[store]}, µs per job by number of {filling}", _costs(values, store, filling))
        for store in TITLES
        for filling in Filling
    ]
    sizes = sorted({size for panel in panels for curve in panel.curves for size, _ in curve.points})
    if len(sizes) < 2:
        return None
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    axis = _Axis(
        lambda size: (math.log10(size) - low) / (high - low), {size: f"{size:,.0f}" for size in sizes}
    )
    return _curves(panels, axis, len(Filling), lambda value: f"{value:g}", from_zero=True)


def _costs(values: Values, store: str, filling: Filling) -> tuple[_Curve, ...]:
    def points(operation: str) -> tuple[tuple[float, float], ...]:
        found = _contenders(values, store, line_key(filling, operation))
        return tuple(sorted((float(who.replace(",", "")), value) for who, value in found if who != OURS))

    curves = (_Curve(operation, points(operation)) for operation in OPERATIONS)
    return tuple(curve for curve in curves if curve.points)


def _curves(
    panels: Sequence[_Panel],
    axis: _Axis,
    columns: int,
    name_of: Callable[[float], str],
    *,
    from_zero: bool,
) -> Canvas | None:
    """Small frames side by side, row by row; a frame without curves is not drawn, nor a row without frames."""
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    rows = [row for row in rows if any(panel.curves for panel in row)]
    if not rows:
        return None
    most = max(len(panel.curves) for panel in panels)
    step = _LEFT + _PANEL + _GAP, _ABOVE + _FRAME_HEIGHT + _BELOW + 14 * math.ceil(most / 2)
    canvas = Canvas(columns * step[0] + _GAP, len(rows) * step[1] + _GAP)
    for down, row in enumerate(rows):
        for across, panel in enumerate(row):
            if panel.curves:
                corner = across * step[0] + _LEFT, down * step[1] + _ABOVE
                _frame(canvas, corner, panel, axis, name_of, from_zero=from_zero)
    return canvas


def _frame(
    canvas: Canvas,
    corner: Point,
    panel: _Panel,
    axis: _Axis,
    name_of: Callable[[float], str],
    *,
    from_zero: bool,
) -> None:
    left, above = corner
    bottom = above + _FRAME_HEIGHT
    heights = [value for curve in panel.curves for _, value in curve.points]
    ticks = _linear_ticks(max(heights)) if from_zero else _log_ticks(min(heights), max(heights))
    scale: Callable[[float], float] = (lambda value: value) if from_zero else math.log10
    low, high = scale(ticks[0]), scale(ticks[-1])

    def point(x: float, value: float) -> Point:
        return left + axis.place(x) * _PANEL, bottom - (scale(value) - low) / (high - low) * _FRAME_HEIGHT

    canvas.text((left, above - 10), panel.title, bold=True)
    for tick in ticks:
        height = bottom - (scale(tick) - low) / (high - low) * _FRAME_HEIGHT
        canvas.line([(left, height), (left + _PANEL, height)])
        canvas.text((left - 4, height + 4), name_of(tick), anchor="end", size=9)
    for mark, name in axis.marks.items():
        x = left + axis.place(mark) * _PANEL
        canvas.line([(x, above), (x, bottom)])
        canvas.text((x, bottom + 14), name, anchor="middle", size=9)
    for place, curve in enumerate(panel.curves):
        colour = COLOURS[place % len(COLOURS)]
        points = [point(x, value) for x, value in curve.points]
        canvas.line(points, colour, 2.5 if curve.name == OURS else 1.5)
        for each in points:
            canvas.dot(each, colour)
        x, y = left + place % 2 * _PANEL / 2, bottom + 32 + 14 * (place // 2)
        canvas.bar((x, y - 8), 10, 8, colour)
        canvas.text((x + 14, y), curve.name)


def _linear_ticks(highest: float) -> list[float]:
    """From zero to above the highest, in steps of 1, 2 or 5 times a power of ten."""
    rough = highest / 4 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * number for number in range(math.ceil(highest / step) + 1)]


def _log_ticks(lowest: float, highest: float) -> list[float]:
    """From below the lowest to above the highest: 1, 2 and 5 times powers of ten."""
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    start = max(place for place, tick in enumerate(ticks) if tick <= lowest)
    end = next(place for place, tick in enumerate(ticks) if tick >= highest and place > start)
    return ticks[start : end + 1]
