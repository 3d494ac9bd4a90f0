"""Makes loaders on a GPU and iterates them; no kernel for CPUs may be compiled. ``test_loader_gpu_late.py`` runs it.

Without a GPU, the kernels are interpreted, on tensors of the CPU.
"""

import sys
from contextlib import nullcontext

import torch
from torch_geometric.data import Data

import manyhop_pyg
from manyhop.sampling import GPUSampler

KERNELS = "manyhop.system.numba_kernels"
DEVICE = "cuda" if torch.cuda.is_available() else None

if DEVICE is None:
    import fast_interpreter  # noqa: F401
    from gpu_stand_ins import CPU, MEMORY, pyg_works_on, stand_for_gpu

    from manyhop.features.gather_gpu import gather_on_gpu
    from manyhop.features.gathering import gather_on_cpu
    from manyhop.loading.gpu import runtime, warm_up
    from manyhop.ranks import cuda

    cuda.in_reach = lambda: True
    stand_for_gpu(setattr)
    pyg_works_on(setattr, CPU)
    warm_up._WARM_UPS = 1
    # The interpreter works for one thread at a time.
    warm_up._in_background = lambda *args, **how: nullcontext()
    MEMORY.cache_bytes, MEMORY.is_slow, MEMORY.cache = 8, lambda request: False, lambda cached: None
    runtime.gather = lambda requests, *, checks, **kwargs: gather_on_gpu(
        requests, CPU, on_cpu=gather_on_cpu, checks=checks
    )


def main():
    data = Data(x=torch.rand(6, 2), edge_index=torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]))
    options = {"batch_size": 6, "seed": 1, "device": DEVICE}
    nodes = manyhop_pyg.NeighborLoader(data, [2], shuffle=True, **options)
    links = manyhop_pyg.LinkNeighborLoader(data, [1], neg_sampling="binary", **options)
    for loader in (nodes, links):
        assert isinstance(loader._gpu.sampling._engine, GPUSampler)
        for batch in loader:
            assert batch.x.size(0) == batch.n_id.numel()
    assert KERNELS not in sys.modules
    nodes.node_sampler.sample_from_nodes(nodes.input_data[torch.tensor([0])])  # asked itself, it samples on the CPU
    assert KERNELS in sys.modules


if __name__ == "__main__":
    main()
