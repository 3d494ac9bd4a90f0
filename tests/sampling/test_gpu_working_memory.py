"""The memory that a launch works in goes by the sizes of its batches, not by the size of the graph."""

import torch

from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph, place
from manyhop.sampling import BatchKey, GPUSampler, NeighborSpec, NodeRequest

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_NODES, DEGREE = 300, 8


def working_memory(copies: int, num_batches: int) -> int:
    """Bytes of all tensors of a launch over so many copies of a small graph, once sizes are known."""
    row, col = torch.randint(0, NUM_NODES, (2, NUM_NODES * DEGREE), generator=torch.Generator().manual_seed(0))
    offsets = torch.arange(copies).view(-1, 1) * NUM_NODES
    edges = EdgeInput(row=(row + offsets).flatten(), col=(col + offsets).flatten())
    graph = build_graph({HOMOGENEOUS_NODE: copies * NUM_NODES}, {HOMOGENEOUS_EDGE: edges})
    spec = NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (4, 3)})
    sampler = GPUSampler(place(graph, DEVICE), spec, device=DEVICE)
    seeds = {HOMOGENEOUS_NODE: torch.arange(5)}
    for _ in range(2):
        sampler.begin([NodeRequest(key=BatchKey(1, 0, b), seeds=seeds) for b in range(num_batches)]).finish()
    ((workspace,),) = [pool._free for pool in sampler._pools.values()]
    parts = [*vars(workspace.kernels.memory).values(), *vars(workspace.host).values()]
    values = [value for part in parts for value in (part if isinstance(part, tuple) else (part,))]
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def test_a_graph_of_a_thousand_times_the_nodes_takes_no_more():
    once = working_memory(1, 2)
    assert working_memory(1000, 2) == once
    assert working_memory(1000, 8) < 6 * once
