"""Sampling: the contract (requests and results), its numpy reference, and the CPU backend.

``CPUSampler`` and ``CPUHGTSampler`` load numba when they are first used.
"""

from manyhop.sampling._contract import (
    CONTRACT_VERSION,
    BatchKey,
    EdgeRequest,
    HGTSpec,
    NegativeSpec,
    NeighborSpec,
    NodeRequest,
    SampledEdges,
    SampledSubgraph,
    Sampler,
)
from manyhop.sampling._cpu_hgt_sampler import CPUHGTSampler
from manyhop.sampling._cpu_sampler import CPUSampler
from manyhop.sampling._edges import EdgeSampler
from manyhop.sampling._reference import ReferenceSampler
from manyhop.sampling._reference_hgt import ReferenceHGTSampler

__all__ = [
    "CONTRACT_VERSION",
    "BatchKey",
    "CPUHGTSampler",
    "CPUSampler",
    "EdgeRequest",
    "EdgeSampler",
    "HGTSpec",
    "NegativeSpec",
    "NeighborSpec",
    "NodeRequest",
    "ReferenceHGTSampler",
    "ReferenceSampler",
    "SampledEdges",
    "SampledSubgraph",
    "Sampler",
]
