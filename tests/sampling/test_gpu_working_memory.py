"""The memory that a launch works in goes by the sizes of its batches, not by the size of the graph."""

import torch
from cpu_cases import one_type, request_of, spec_of

from manyhop.graph import place
from manyhop.sampling import GPUSampler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_NODES, DEGREE = 300, 8


def working_memory(copies: int, num_batches: int) -> int:
    """Bytes of all tensors of a launch over so many copies of a small graph, once sizes are known."""
    row, col = torch.randint(0, NUM_NODES, (2, NUM_NODES * DEGREE), generator=torch.Generator().manual_seed(0))
    offsets = torch.arange(copies).view(-1, 1) * NUM_NODES
    graph = one_type(copies * NUM_NODES, (row + offsets).flatten(), (col + offsets).flatten())
    sampler = GPUSampler(place(graph, DEVICE), spec_of(4, 3), device=DEVICE)
    for _ in range(2):
        sampler.begin([request_of(range(5), b) for b in range(num_batches)]).finish()
    ((workspace,),) = [pool._free for pool in sampler._pools.values()]
    parts = [*vars(workspace.kernels.memory).values(), *vars(workspace.host).values()]
    values = [value for part in parts for value in (part if isinstance(part, tuple) else (part,))]
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def test_a_graph_of_a_thousand_times_the_nodes_takes_no_more():
    once = working_memory(1, 2)
    assert working_memory(1000, 2) == once
    assert working_memory(1000, 8) < 6 * once
