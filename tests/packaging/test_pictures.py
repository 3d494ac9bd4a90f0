"""The plot of the README shows the figures that the benchmark pages have."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def script():
    spec = importlib.util.spec_from_file_location("plot_speed", ROOT / "tests" / "benchmarks" / "plot_speed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_plot_has_the_figures_of_the_pages():
    plot = script()
    figures = [f for _, _, groups in plot.panels() for _, group in groups for f in group]
    shown = re.findall(r"<text[^>]*>([^<]+)</text>", (DOCS / "speed.svg").read_text())
    assert len(figures) > 10
    ratios = [text for text in shown if re.fullmatch(r"\d+\.\d+", text)]
    assert ratios == [f.text for f in figures], "run `python tests/benchmarks/plot_speed.py`"
    assert {f.label for f in figures} <= set(shown)
