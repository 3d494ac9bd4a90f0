"""Sampling: the contract (requests and results), its numpy reference, the CPU and the GPU backend.

``CPUSampler`` and ``CPUHGTSampler`` load numba when they are first used; the names of the GPU backend load triton when
they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manyhop.sampling.contract import (
    CONTRACT_VERSION,
    BatchKey,
    EdgeRequest,
    Engine,
    HGTSpec,
    LaborSpec,
    NegativeSpec,
    NeighborSpec,
    NodeRequest,
    PageRankNeighbors,
    PageRankSpec,
    Pending,
    SampledEdges,
    SampledSubgraph,
    Sampler,
    WalkRequest,
    Walks,
    WalkSpec,
)
from manyhop.sampling.cpu.hgt_sampler import CPUHGTSampler
from manyhop.sampling.cpu.labor_sampler import CPULaborSampler
from manyhop.sampling.cpu.sampler import CPUSampler
from manyhop.sampling.cpu.walk_sampler import CPUPageRankSampler, CPUWalkSampler
from manyhop.sampling.reference.hgt import ReferenceHGTSampler
from manyhop.sampling.reference.labor import ReferenceLaborSampler
from manyhop.sampling.reference.sampler import ReferenceSampler
from manyhop.sampling.reference.walks import ReferencePageRankSampler, ReferenceWalkSampler
from manyhop.sampling.seed_edges import EdgeSampler
from manyhop.system import triton_compiler

if TYPE_CHECKING:
    from manyhop.sampling.gpu.edges import GPUEdgeSampler
    from manyhop.sampling.gpu.hgt import GPUHGTSampler
    from manyhop.sampling.gpu.labor import GPULaborSampler
    from manyhop.sampling.gpu.sampler import GPUSampler
    from manyhop.sampling.gpu.walk_sampler import GPUPageRankSampler, GPUWalkSampler

__all__ = [
    "CONTRACT_VERSION",
    "BatchKey",
    "CPUHGTSampler",
    "CPULaborSampler",
    "CPUPageRankSampler",
    "CPUSampler",
    "CPUWalkSampler",
    "EdgeRequest",
    "EdgeSampler",
    "Engine",
    "GPUEdgeSampler",
    "GPUHGTSampler",
    "GPULaborSampler",
    "GPUPageRankSampler",
    "GPUSampler",
    "GPUWalkSampler",
    "HGTSpec",
    "LaborSpec",
    "NegativeSpec",
    "NeighborSpec",
    "NodeRequest",
    "PageRankNeighbors",
    "PageRankSpec",
    "Pending",
    "ReferenceHGTSampler",
    "ReferenceLaborSampler",
    "ReferencePageRankSampler",
    "ReferenceSampler",
    "ReferenceWalkSampler",
    "SampledEdges",
    "SampledSubgraph",
    "Sampler",
    "WalkRequest",
    "WalkSpec",
    "Walks",
]

_ON_GPU = {
    "GPUEdgeSampler": "edges",
    "GPUHGTSampler": "hgt",
    "GPULaborSampler": "labor",
    "GPUPageRankSampler": "walk_sampler",
    "GPUSampler": "sampler",
    "GPUWalkSampler": "walk_sampler",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_GPU:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    triton_compiler.require("Sampling on a GPU")
    return getattr(import_module(f"manyhop.sampling.gpu.{_ON_GPU[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
