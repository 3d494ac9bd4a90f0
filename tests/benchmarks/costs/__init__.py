"""What a run takes on machines that are not at hand: expected sizes of batches, a cost model, a simulation of ranks.

All are pure functions, but for :func:`sampled_sizes` and :func:`sample_batches`, which sample on the CPU.
"""

from benchmarks.costs.machine import (
    H100,
    H200,
    MACHINES,
    CPUCosts,
    CuGraphCosts,
    GPUCosts,
    Machine,
    read_machine,
    write_machine,
)
from benchmarks.costs.model import MERGED, Cluster, Step, Times, Workload, cpu_batch_s, graph_sage, predict
from benchmarks.costs.sampled import sample_batches, sampled_sizes
from benchmarks.costs.simulation import Simulated, requests_by_part, simulate
from benchmarks.costs.sizes import SHARES, BatchSizes, expected_sizes

__all__ = [
    "H100",
    "H200",
    "MACHINES",
    "MERGED",
    "SHARES",
    "BatchSizes",
    "CPUCosts",
    "Cluster",
    "CuGraphCosts",
    "GPUCosts",
    "Machine",
    "Simulated",
    "Step",
    "Times",
    "Workload",
    "cpu_batch_s",
    "expected_sizes",
    "graph_sage",
    "predict",
    "read_machine",
    "requests_by_part",
    "sample_batches",
    "sampled_sizes",
    "simulate",
    "write_machine",
]
