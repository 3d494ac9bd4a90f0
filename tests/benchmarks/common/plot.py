"""The plot of a record: sampled edges per second on one thread, as horizontal bars in an SVG file.

Written without matplotlib: records are also made on machines that lack it and cannot install it, most of all those with
GPUs.
"""

from __future__ import annotations

from html import escape

from benchmarks.common.measure import by_workload
from benchmarks.common.report import Record

_COLOURS = ("#1b6ca8", "#8a8f98", "#d1803c", "#7a5aa6", "#4c9a5f", "#b4474f")
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 760, 190, 170, 16, 10


def as_svg(record: Record) -> str:
    """The picture, in which every section has a scale of its own."""
    names = list(dict.fromkeys(t.name for s in record.sections for t in s.timings))
    colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    y = 30
    body = [
        svg_text(16, y, record.title, size=15, bold=True),
        svg_text(16, y + 20, "million sampled edges/s, one thread"),
    ]
    y += 34
    for section in record.sections:
        timings = [t for t in section.timings if t.threads == 1]
        if not timings:
            continue
        y += 24
        body.append(svg_text(16, y, section.title, bold=True))
        y += 8
        scale = (_WIDTH - _LEFT - _RIGHT) / max(t.edges_per_s for t in timings)
        for workload, group in by_workload(timings).items():
            body.append(svg_text(_LEFT - 8, y + 12, workload, anchor="end"))
            for timing in group:
                length = max(1.0, timing.edges_per_s * scale)
                fill = colour[timing.name]
                body.append(f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR - 2}" fill="{fill}"/>')
                label = f"{timing.edges_per_s / 1e6:.1f} {timing.name}"
                body.append(svg_text(_LEFT + length + 5, y + 12, label, size=11))
                y += _BAR
            y += _GAP
    height = y + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )


def svg_text(x: float, y: float, text: str, *, size: int = 12, bold: bool = False, anchor: str = "start") -> str:
    """One line of text in an SVG file."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#222"{weight}>'
        f"{escape(text)}</text>"
    )
