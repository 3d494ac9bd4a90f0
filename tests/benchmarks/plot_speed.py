"""Draw docs/speed.svg from the tables of docs/speed/benchmarks.md: `python tests/benchmarks/plot_speed.py`.

The figures are read from the page, so the picture cannot differ from it; tests/packaging/test_pictures.py compares.
"""

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"([\d.]+)(?: \(([\d.]+)-([\d.]+)\))?")
BLUE, GREY, TEXT = "#2563eb", "#94a3b8", "#0f172a"


@dataclass(frozen=True)
class Figure:
    """A ratio of times, as a page has it, with its quartiles."""

    label: str
    text: str
    low: float | None = None
    high: float | None = None

    @property
    def value(self) -> float:
        return float(self.text)


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without the line of dashes."""
    text = (DOCS / "speed" / "benchmarks.md").read_text().split(f"\n{heading}", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None, heading
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()]
    return [cells[0], *cells[2:]]


def figure(label: str, cell: str) -> Figure:
    match = NUMBER.match(cell)
    assert match is not None, cell
    low, high = match[2], match[3]
    return Figure(label, match[1], float(low) if low else None, float(high) if high else None)


def cpu(heading: str) -> list[tuple[str, list[Figure]]]:
    """Return PyG's time over manyhop's, for whole loaders on one thread of a CPU."""
    head, *body = rows(heading)
    columns = [i for i, name in enumerate(head) if name.startswith("whole loader")]
    groups = [(head[i].removeprefix("whole loader, "), i) for i in columns]
    return [(name, [figure(row[0], row[i]) for row in body if row[i] != "-"]) for name, i in groups]


def gpu() -> list[tuple[str, list[Figure]]]:
    """Return cuGraph-PyG's time over manyhop's, for whole loaders on GPUs."""
    body = rows("## cuGraph-PyG")[1:]
    names = {"1": "1 GPU", "2": "2 GPUs"}
    return [
        ("128 features", [figure(f"{row[0]}, {names[row[1]]}", row[2]) for row in body]),
    ]


def panels() -> list[tuple[str, str, list[tuple[str, list[Figure]]]]]:
    """Return title, unit and groups of bars of each panel."""
    return [
        ("PyG with pyg-lib, AMD EPYC, one thread", "time per sampled edge, manyhop = 1", cpu("## PyG with pyg-lib")),
        ("PyG with pyg-lib, Intel Xeon, one thread", "time per sampled edge, manyhop = 1", cpu("### On an Intel Xeon")),
        ("cuGraph-PyG, NVIDIA H200", "time per batch, manyhop = 1", gpu()),
    ]


def draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {"svg.fonttype": "none", "svg.hashsalt": "manyhop", "font.size": 10, "text.color": TEXT}
    style |= {"font.family": "sans-serif", "axes.edgecolor": GREY, "xtick.color": TEXT, "ytick.color": TEXT}
    with plt.rc_context(style):
        drawing, axes = plt.subplots(3, 1, figsize=(5.4, 7.6), height_ratios=(3, 2.5, 1.6), layout="constrained")
        for panel, (title, unit, groups) in zip(axes, panels(), strict=True):
            bars(panel, groups)
            panel.set_title(title, loc="left", fontweight="bold", fontsize=11)
            panel.set_xlabel(unit)
        drawing.savefig(path, metadata={"Date": None})
    text = path.read_text().replace("<defs>", "<title>Time of other loaders over that of manyhop</title>\n <defs>", 1)
    dark = "@media (prefers-color-scheme: dark) { svg { filter: invert(0.92) hue-rotate(180deg); } }"
    text = text.replace("</style>", f"{dark}</style>", 1)
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def bars(panel, groups) -> None:  # type: ignore[no-untyped-def]  # of matplotlib
    labels = [f.label for f in groups[0][1]]
    height = 0.8 / len(groups)
    most = max(f.high or f.value for _, figures in groups for f in figures)
    for g, (name, figures) in enumerate(groups):
        places = [labels.index(f.label) + (g - (len(groups) - 1) / 2) * height for f in figures]
        colour = BLUE if name == "128 features" else GREY
        panel.barh(places, [f.value for f in figures], height * 0.92, color=colour, label=name)
        for place, f in zip(places, figures, strict=True):
            if f.low is not None and f.high is not None:
                panel.plot([f.low, f.high], [place, place], color=TEXT, linewidth=1)
            panel.text((f.high or f.value) + most * 0.015, place, f.text, va="center", fontsize=9)
    panel.set_yticks(range(len(labels)), labels)
    panel.invert_yaxis()
    panel.set_xlim(0, most * 1.12)
    panel.axvline(1, color=TEXT, linewidth=0.8, linestyle=":")
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.legend(frameon=False, fontsize=9, loc="lower right")


if __name__ == "__main__":
    draw(DOCS / "speed.svg")
