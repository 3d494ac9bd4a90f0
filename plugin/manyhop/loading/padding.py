"""Fixed sizes of a loader's batches, found by sampling some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.loading.adapter import SeedSource
from manyhop.loading.keys import BatchContext
from manyhop.loading.pipeline import BatchPlan
from manyhop.loading.pipeline.block_sizes import PROBES
from manyhop.sampling import BatchKey

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime

SampleT = TypeVar("SampleT")
Pad: TypeAlias = Literal["auto"]


def check_pad_option(pad: Pad | None) -> None:
    """Raise InputError for an unknown ``pad``."""
    if pad not in (None, "auto"):
        raise InputError(f"Expected pad to be None or 'auto', got {pad!r}.")


def check_names_of_masks(masks: Sequence[str], taken: set[str]) -> None:
    """Raise FeatureError if data and masks of batches would have equal names."""
    for name in masks:
        if name in taken:
            raise FeatureError(
                f"Expected data without an attribute '{name}', since batches get one with pad='auto'. Rename it."
            )


def empty_types(graph: Graph) -> list[NodeType | EdgeType]:
    """Return the types without nodes, or edges, in a graph."""
    nodes: list[NodeType | EdgeType] = [t for t, n in graph.num_nodes.items() if n == 0]
    return nodes + [t for t in graph.edge_types if graph.num_edges(t) == 0]


def probe(plan: BatchPlan, seeds: SeedSource[SampleT], gpu: GPURuntime | None) -> list[SampleT]:
    """Sample batches spread evenly over epoch 0 of seed 0. Sizes thus do not depend on the loader's seed."""
    last = (plan.num_items - 1) // plan.batch_size  # may be smaller; in a small graph fewer seeds per hop add more
    batches = sorted({round(i * last / (PROBES - 1)) for i in range(PROBES)})
    found: list[SampleT] = []
    if gpu is None or gpu.sampling is None:
        for batch in batches:
            with BatchContext(BatchKey(plan.seed, 0, batch), None):
                found.append(seeds.sample(torch.from_numpy(plan.indices(0, batch))))
        return found
    for i in range(0, len(batches), gpu.group_size):
        group = batches[i : i + gpu.group_size]
        inputs: Sequence[Any]
        if gpu.lookup is not None:  # looked up there: nothing is compiled for the CPU
            inputs = gpu.lookup.of(plan, 0, group)
        else:
            inputs = seeds.inputs([torch.from_numpy(plan.indices(0, batch)) for batch in group])
        found += seeds.begin(gpu.sampling, inputs, [BatchKey(plan.seed, 0, batch) for batch in group])()
    gpu.drain()
    return found


def lengthened(values: Tensor, size: int, fill: int) -> Tensor:
    """Return ``values`` with ``size`` rows, the last ones filled; without a copy if it has that many."""
    missing = size - values.size(0)
    return torch.cat([values, values.new_full((missing, *values.shape[1:]), fill)]) if missing else values


def mask_of(count: int, size: int, device: torch.device) -> Tensor:
    """Return ``[size] bool``, True for the first ``count`` rows: the others are padding."""
    mask = torch.ones(size, dtype=torch.bool, device=device)
    if count < size:
        mask[count:] = False
    return mask
