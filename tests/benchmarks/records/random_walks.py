"""Times of random walks on a GPU, and on the CPU with one thread; their bits are compared."""

import statistics
import time

import torch

from manyhop.graph import HOMOGENEOUS_EDGE as EDGE
from manyhop.graph import HOMOGENEOUS_NODE as NODE
from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import BatchKey, CPUWalkSampler, GPUWalkSampler, WalkRequest, WalkSpec

N, M, STEPS, ON_GPU, ON_CPU = 1_000_000, 20_000_000, 20, 400_000, 20_000
KEY = BatchKey(1, 0, 0)
SPECS = {
    "uniform": {},
    "by weight": {"weighted": True},
    "ends with 0.1 before each step": {"stop": (0.1,) * STEPS},
    "node2vec, p=1, q=0.5": {"q": 0.5},
    "node2vec, p=0.25, q=4": {"p": 0.25, "q": 4.0},
}


def main():
    g = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, N, (M,), generator=g), (torch.rand(M, generator=g) ** 2 * N).long()
    graph = build_graph({NODE: N}, {EDGE: EdgeInput(row=src, col=dst, weight=torch.rand(M, generator=g))})
    there, start = place(graph, "cuda"), torch.randint(0, N, (ON_GPU,), generator=g)
    for name, options in SPECS.items():
        spec = WalkSpec(steps=(EDGE,) * STEPS, **options)
        gpu, cpu = GPUWalkSampler(there, spec, device="cuda"), CPUWalkSampler(graph, spec)
        ms = {}
        for number in (ON_GPU, 1280):
            request, rounds = WalkRequest(key=KEY, start=start[:number].cuda()), []
            for _ in range(12):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                found = gpu.sample(request)
                end.record()
                end.synchronize()
                rounds.append(begin.elapsed_time(end))
            ms[number] = statistics.median(rounds[2:])
        request, rounds = WalkRequest(key=KEY, start=start[:ON_CPU]), []
        for _ in range(4):
            begin = time.perf_counter()
            expected = cpu.sample(request).node
            rounds.append(1e3 * (time.perf_counter() - begin) * ON_GPU / ON_CPU)
        same = torch.equal(expected[:1280], found.node.cpu())
        print(
            f"{name}: {ON_GPU} walks {ms[ON_GPU]:.2f} ms, CPU {statistics.median(rounds[1:]):.0f} ms; 1280 walks "
            f"{ms[1280]:.3f} ms; same bits: {same}",
            flush=True,
        )


if __name__ == "__main__":
    main()
