"""Charts of curves as SVG text. The page's style sets colours and fonts.

A unit of a chart is about a pixel on a phone. The chart is scaled to its column. A point shows its value
under the mouse.
"""

import html
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

WIDTH, HEIGHT, SQUARE = 380, 230, 330
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 24, 34  # margins
COLOURS = 6
MOST_STEPS = 6  # between the ticks of an axis
LABEL_DISTANCE = 13

Point = tuple[float, float]


class Curve(NamedTuple):
    """A curve of a chart."""

    name: str
    points: Sequence[Point]
    colour: int
    style: Literal["dots", "line", "thin", "level"] = "line"
    labelled: Point | None = None  # the point that shows its value


def line_chart(
    drawn: Sequence[Curve], x: str, y: str, *, digits: int, y_range: tuple[float, float] | None = None,
    diagonal: float | None = None,
) -> str:  # fmt: skip
    """An SVG of curves over the axes `x` and `y`. Values have `digits` digits after the point.

    An axis starts at zero. `y_range` is another range, and is widened to round numbers. With
    `diagonal`, the chart is a square with a dotted diagonal, and its x axis goes from `diagonal` to 1.
    """
    xs, ys = zip(*(point for curve in drawn for point in curve.points), strict=True)
    height, x_low, x_high = HEIGHT, 0.0, max(1, *xs)
    if diagonal is not None:
        height, x_low, x_high = SQUARE, diagonal, 1
    y_ticks = ticks(*(y_range or (min(0, *ys), max(ys))))
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place(point: Point) -> Point:
        across = (point[0] - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        up = (point[1] - y_low) / (y_high - y_low) * (height - TOP - BOTTOM)
        return round(LEFT + across, 1), round(height - BOTTOM - up, 1)

    parts = [_text(0, 10, y), _text(WIDTH - RIGHT, height - 2, x, "end")]
    for tick in y_ticks:
        level = place((x_low, tick))[1]
        parts.append(_line((LEFT, level), (WIDTH - RIGHT, level), "rule"))
        parts.append(_text(LEFT - 6, level + 4, _tick_text(tick, y_ticks), "end"))
    inner = [tick for tick in ticks(x_low, x_high) if x_low <= tick <= x_high]
    for tick in inner:
        across = place((tick, y_low))[0]
        parts.append(_text(across, height - BOTTOM + 15, _tick_text(tick, inner), "middle"))
    if diagonal is not None:
        parts.append(_line(place((diagonal, diagonal)), place((1, 1)), "guide"))
    labelled = []
    for curve in drawn:
        parts.append(_curve(curve, list(map(place, curve.points)), f"{x} {{:,.4g}}: {{:.{digits}f}}"))
        if curve.labelled is not None:
            labelled.append((place(curve.labelled), f"{curve.labelled[1]:.{digits}f}"))
    drawing = "".join([*parts, *_labels(labelled)])
    return f'<svg viewBox="0 0 {WIDTH} {height}" aria-hidden="true">{drawing}</svg>'


def ticks(low: float, high: float) -> list[float]:
    """Evenly spaced round numbers, from at most `low` to at least `high`.

    >>> ticks(0, 361), ticks(94.2, 96.7)
    ([0.0, 100.0, 200.0, 300.0, 400.0], [94.0, 94.5, 95.0, 95.5, 96.0, 96.5, 97.0])
    """
    if high <= low:
        high = low + 1
    rough = (high - low) / MOST_STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _tick_text(tick: float, all_ticks: Sequence[float]) -> str:
    step = all_ticks[1] - all_ticks[0] if len(all_ticks) > 1 else 1
    return f"{tick:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _curve(curve: Curve, places: list[Point], title: str) -> str:
    """A line through the points, and a dot for each, which the style may hide, with the point's value."""
    path = " ".join(f"{x},{y}" for x, y in places)
    parts = [f'<polyline points="{path}"/>']
    for (x, y), point in zip(places, curve.points, strict=True):
        said = html.escape(f"{curve.name}, {title.format(*point)}")
        parts.append(f'<circle cx="{x}" cy="{y}" r="2.5"><title>{said}</title></circle>')
    return f'<g class="{curve.style} c{curve.colour % COLOURS}">{"".join(parts)}</g>'


def _labels(labelled: Sequence[tuple[Point, str]]) -> list[str]:
    """Values above their points, from the lowest up. A value moves up if it would cover another."""
    labels, level = [], math.inf
    for (x, y), value in sorted(labelled, key=lambda each: -each[0][1]):
        level = min(y - 8, level - LABEL_DISTANCE)
        anchor = "end" if x > WIDTH - 60 else "start" if x < LEFT + 20 else "middle"
        labels.append(_text(x, round(level, 1), value, anchor, "value"))
    return labels


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{kind}>{html.escape(text)}</text>'


def _line(start: Point, end: Point, style: str) -> str:
    return f'<line class="{style}" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>'
