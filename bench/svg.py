"""Just enough SVG for a few plots: text, bars, lines and dots on a canvas, in colours that stay readable on light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

INK = "#57606a"
FAINT = "#8c959f55"
FONT = 11
Point = tuple[float, float]


@dataclass(slots=True)
class Canvas:
    """A drawing that grows; coordinates are pixels from the upper left."""

    width: float
    height: float
    _parts: list[str] = field(default_factory=list[str])

    def text(
        self, at: Point, words: str, *, anchor: str = "start", size: float = FONT, bold: bool = False
    ) -> None:
        """Words, whose start, middle or end is at that point of their base line."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" font-size="{size:g}"{weight} '
            f'fill="{INK}">{escape(words)}</text>'
        )

    def bar(self, corner: Point, width: float, height: float, colour: str) -> None:
        """A filled rectangle, from its upper left corner."""
        self._parts.append(
            f'<rect x="{corner[0]:.1f}" y="{corner[1]:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{colour}"/>'
        )

    def line(self, points: Sequence[Point], colour: str = FAINT, width: float = 1) -> None:
        """A line through all these points."""
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline points="{through}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'
        )

    def dot(self, at: Point, colour: str) -> None:
        """A small disc."""
        self._parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="2.5" fill="{colour}"/>')

    def __str__(self) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
        return "\n".join([head, *self._parts, "</svg>", ""])
