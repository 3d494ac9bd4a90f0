"""Names of what is measured, which command lines offer: nothing is imported for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.cpu.tasks import Mode

WORKLOADS: Mapping[str, tuple[str, Mode, tuple[int, ...]]] = {
    "15-10-5": ("[15, 10, 5]", "uniform", (15, 10, 5)),
    "10-10": ("[10, 10]", "uniform", (10, 10)),
    "weighted": ("weighted [15, 10, 5]", "weighted", (15, 10, 5)),
    "disjoint": ("disjoint [15, 10]", "disjoint", (15, 10)),
    "temporal": ("temporal [15, 10]", "temporal", (15, 10)),
    "hetero": ("3 node types [10, 10]", "uniform", (10, 10)),
}
"""Workloads of `benchmarks cpu`: name -> title, mode, fanout."""

BUILD = "build"
"""Beside these: an edge list becomes the topology."""

PARTS = ("limits", "sampling", "gather", "loader", "epoch", "build", "stores")
"""What can be measured. The limits of the hardware are always measured."""

STEP_PARTS = ("layers", "training", "planted", "accuracy")
"""What `benchmarks step` measures."""

CONTENDERS: Mapping[str, tuple[str, ...]] = {
    "manyhop": ("sampling", "gather", "loader", "epoch", "build", "stores"),
    "WholeGraph": ("sampling", "gather"),
    "pylibcugraph": ("sampling",),
    "torch": ("gather",),
    "cuGraph-PyG": ("loader", "epoch"),
    "PyG": ("loader", "epoch"),
}
"""Who is measured, at which parts."""
