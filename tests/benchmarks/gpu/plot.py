"""The plot of a record of ``benchmarks gpu``: how much longer the others take, as horizontal bars in an SVG file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.common.plot import svg_text
from benchmarks.gpu.record import Run

_COLOURS = {"cuGraph-PyG": "#d1803c", "PyG": "#7a5aa6", "WholeGraph": "#4c9a5f", "torch": "#8a8f98"}
_OTHER = "#b4474f"
_WIDTH, _LEFT, _RIGHT, _BAR = 860, 330, 150, 16


def as_svg(runs: Sequence[Run]) -> str:
    """Bars on a logarithmic scale: time over that of manyhop; the line is manyhop."""
    rows = [(run, row, run.ratio(row)) for run in runs for row in run.rows if row.part != "limits"]
    bars = [(run, row, ratio) for run, row, ratio in rows if ratio is not None and ratio > 0]
    most = max([10.0, *(ratio for _, _, ratio in bars)])
    least = min([0.5, *(ratio for _, _, ratio in bars)])
    scale = (_WIDTH - _LEFT - _RIGHT) / math.log(most / least)
    body = [
        svg_text(16, 26, "Time over that of manyhop (line), logarithmic: longer bars are slower", size=15, bold=True)
    ]
    y, seen = 34, ("", "")
    one = _LEFT + math.log(1 / least) * scale
    for run, row, ratio in bars:
        if (run.title, row.part) != seen:
            seen = (run.title, row.part)
            y += 26
            body.append(svg_text(16, y, f"{row.part}: {run.title}", bold=True))
            y += 8
        length = max(1.0, math.log(ratio / least) * scale)
        label = f"{row.workload}, {row.gpus} GPU{'s' if row.gpus > 1 else ''}"
        body.append(svg_text(_LEFT - 8, y + 12, label, anchor="end", size=11))
        fill = _COLOURS.get(row.name, _OTHER)
        body.append(f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR - 3}" fill="{fill}"/>')
        name = f"{ratio:.2g} {row.name}" if ratio < 100 else f"{ratio:.0f} {row.name}"
        body.append(svg_text(_LEFT + length + 5, y + 11, f"{name} {row.setting}".strip(), size=11))
        y += _BAR
    body.append(f'<path d="M{one:.1f} 34V{y + 6}" stroke="#1b6ca8"/>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 20}" '
            f'viewBox="0 0 {_WIDTH} {y + 20}" font-family="sans-serif">',
            f'<rect width="{_WIDTH}" height="{y + 20}" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )
