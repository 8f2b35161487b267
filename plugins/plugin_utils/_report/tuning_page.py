# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tuning as one self-contained page with curves: no script, no network, light and dark. Private."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from .columns import plain
from .html import _cell, _text, document
from .tuning import Row, Tuning, began_with, cards, engine_args_text, number, parameter, score

STYLE = "tuning.css"
WIDTH, HEIGHT = 520, 220
LEFT, RIGHT, TOP, BOTTOM = 94, 14, 18, 34
HEADROOM = 1.12
KINDS = {"kept": "kept", "back": "rolled back", "failed": "did not run"}
TABLE = ("Step", "Parameter", "From", "To", "Measured", "KV tokens", "Verdict")
NUMBERS = ("Measured", "KV tokens")


@dataclass(frozen=True)
class Point:
    """One start on a curve. values: of each run; none where it did not run or was not measured."""

    label: str
    values: Sequence[float]
    kind: str
    title: str


def tuning_page(tuning: Tuning) -> str:
    """The page: what came of it, a curve for each parameter and each bound, and every step. Same input, same bytes."""
    title = f"Tuning of {tuning.name} on {tuning.host}"
    body = [
        f"<h1>{_text(title)}</h1>",
        _figures(tuning),
        _result(tuning),
        f"<h2>Curves</h2>{_legend(tuning.bounds)}",
        '<div class="curves">',
        *_curves(tuning),
        "</div>",
        _steps(tuning),
    ]
    return document(title, body, STYLE)


def _figures(tuning: Tuning) -> str:
    gain, noise = tuning.gain, (tuning.end or {}).get("noise")
    figures = [
        ("Steps", str(len(tuning.rows)), f"{tuning.minutes:.0f} minutes"),
        ("Gain", "–" if gain is None else f"{gain:+.1%}", f"{tuning.maximize} of each card"),
        ("Noise", "–" if noise is None else f"{noise:.1%}", "between equal runs"),
        ("Kept", str(sum(bool(row["change"] and row["kept"]) for row in tuning.rows)), "changes"),
        ("Did not run", str(sum(row["outcome"] != "serves" for row in tuning.rows)), "starts"),
    ]
    items = "".join(
        f'<div class="surface"><dt>{title}</dt><dd>{_text(value)}<small>{_text(note)}</small></dd></div>'
        for title, value, note in figures
    )
    return f'<dl class="figures">{items}</dl>'


def _result(tuning: Tuning) -> str:
    notes = "".join(f"<li>{_text(note)}</li>" for note in (tuning.end or {}).get("notes") or ())
    told = f"<ul>{notes}</ul>" if notes else ""
    found = tuning.engine_args()
    if tuning.end is None:
        return f'<h2>Result</h2><p class="calm">It has not ended.</p>{told}'
    if not found:
        return f'<h2>Result</h2><p class="calm">Nothing to change.</p>{told}'
    yaml = _text(engine_args_text(found))
    head = f"<p>Put this into the inventory, below the instance {_text(tuning.name)}, and deploy it:</p>"
    return f'<h2>Result</h2><div class="surface">{head}<pre><code>{yaml}</code></pre>{told}</div>'


def _legend(bounds: Mapping[str, float]) -> str:
    items = "".join(f'<span><i class="mark {kind}"></i>{told}</span>' for kind, told in KINDS.items())
    items += '<span><i class="mark unmeasured"></i>not measured</span>'
    bound = '<span><i class="mark bound"></i>bound</span>' if bounds else ""
    return f'<p class="legend">{items}{bound}</p>'


def _curves(tuning: Tuning) -> Iterator[str]:
    parameters = dict.fromkeys(parameter(row) for row in tuning.rows if row["change"])
    figures: list[tuple[str, float | None]] = [(tuning.maximize, None), *sorted(tuning.bounds.items())]
    for name in parameters:
        for figure, bound in figures:
            points = list(_points(tuning, name, figure, bound is None))
            if any(point.values for point in points):
                yield _curve(name, figure, points, bound)


def _points(tuning: Tuning, name: str, figure: str, for_each_card: bool) -> Iterator[Point]:
    """The start that the first change was compared with, then each change of the parameter."""
    base: Row | None = None
    begun = False
    for row in tuning.rows:
        if row["change"] and parameter(row) == name:
            if not begun:
                yield Point(
                    began_with(row["change"]["from"]), _values(base, figure, for_each_card), "kept", "before the change"
                )
                begun = True
            kind = "failed" if row["outcome"] != "serves" else "kept" if row["kept"] else "back"
            title = f"step {row['number']}: {row['verdict']}"
            yield Point(number(row["change"]["to"]), _values(row, figure, for_each_card), kind, title)
        # A start that was not measured is no base either: what it begins with cannot be compared.
        if row["kept"]:
            base = row


def _values(row: Row | None, figure: str, for_each_card: bool) -> list[float]:
    divisor = cards(row) if row and for_each_card else 1
    return [float(run[figure]) / divisor for run in (row or {}).get("runs") or () if run.get(figure) is not None]


def _curve(name: str, figure: str, points: Sequence[Point], bound: float | None) -> str:
    top = HEADROOM * max([bound or 0.0, *(value for point in points for value in point.values)]) or 1.0
    step = (WIDTH - LEFT - RIGHT) / len(points)
    centres = [LEFT + step * (index + 0.5) for index in range(len(points))]

    def height(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)

    measured = [(x, fmean(point.values)) for x, point in zip(centres, points, strict=True) if point.values]
    line = " ".join(f"{x:.1f},{height(value):.1f}" for x, value in measured)
    told = "; ".join(f"{point.label}: {_mean(point)}" for point in points)
    parts = [
        *_axis(top, height),
        f'<line class="bound" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height(bound):.1f}" y2="{height(bound):.1f}"/>'
        if bound is not None
        else "",
        f'<polyline class="curve" points="{line}"/>',
        *(mark for x, point in zip(centres, points, strict=True) for mark in _marks(x, point, height)),
    ]
    label = f"{_text(name)} <small>{_text(figure)}{'' if bound is not None else ' of each card'}</small>"
    return (
        f'<figure class="surface"><figcaption>{label}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(f"{name}, {figure}: {told}")}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _axis(top: float, height: Any) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        value = share * top / HEADROOM
        y = height(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="scale" x="{LEFT - 8}" y="{y + 4:.1f}">{plain(value)}</text>'


def _marks(x: float, point: Point, height: Any) -> Iterator[str]:
    yield f'<text class="value" x="{x:.1f}" y="{HEIGHT - 12}">{_text(point.label)}</text>'
    title = f"<title>{_text(point.title)}</title>"
    if not point.values:
        y = height(0)
        cross = f"M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12"
        kind = "failed" if point.kind == "failed" else "unmeasured"
        yield f'<path class="{kind}" d="{cross}">{title}</path>'
        return
    low, high = height(min(point.values)), height(max(point.values))
    yield f'<line class="spread" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    yield f'<circle class="{point.kind}" cx="{x:.1f}" cy="{height(fmean(point.values)):.1f}" r="5">{title}</circle>'


def _mean(point: Point) -> str:
    return plain(fmean(point.values)) if point.values else KINDS.get(point.kind, "not measured")


def _steps(tuning: Tuning) -> str:
    head = "".join(f"<th{' class=number' if title in NUMBERS else ''}>{title}</th>" for title in TABLE)
    rows = "".join(f"<tr>{''.join(_cells(row, tuning.maximize))}</tr>" for row in tuning.rows)
    table = f'<table class="rows"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<h2>Steps</h2><div class="surface">{table}</div>'


def _cells(row: Row, maximize: str) -> Iterator[str]:
    change: Mapping[str, Any] = row["change"] or {}
    measured = score(row, maximize)
    tokens = ((row.get("receipt") or {}).get("measured") or {}).get("kv_tokens")
    values = (
        str(row["number"]),
        _text(parameter(row)),
        _text(began_with(change["from"])) if change else "",
        _text(number(change.get("to"))),
        "–" if measured is None else plain(measured),
        "–" if tokens is None else f"{tokens:,}",
        _text(row["verdict"]),
    )
    for title, value in zip(TABLE, values, strict=True):
        yield _cell(title, value, title in NUMBERS)
