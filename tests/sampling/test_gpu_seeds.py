"""Groups of seeds on the device: the same as the requests that they stand for."""

import pytest
import torch

pytest.importorskip("triton")
from manyhop.errors import InputError
from manyhop.graph import CSC, Graph
from manyhop.sampling import BatchKey, GPUSampler, NeighborSpec
from manyhop.sampling.gpu.launch.seeds import SeedGroup

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def graph() -> Graph:
    g = torch.Generator().manual_seed(0)
    csc = {}
    for src, dst in (("a", "b"), ("b", "a")):
        row = torch.randint(0, 20, (100,), generator=g, dtype=torch.int32)
        csc[src, "to", dst] = CSC(num_src=20, colptr=(torch.arange(21) * 5).to(DEVICE), row=row.to(DEVICE))
    return Graph(num_nodes={"a": 20, "b": 20}, csc=csc)


def group(sizes: list[int], bad: int | None = None) -> SeedGroup:
    seeds = torch.randint(0, 20, (sum(sizes),))
    if bad is not None:
        seeds[bad] = 20
    return SeedGroup([BatchKey(-5 << 70, 3, 7 * k) for k in range(len(sizes))], "b", seeds.to(DEVICE), sizes)


@pytest.mark.parametrize("disjoint", [False, True])
def test_samples_are_those_of_the_requests(disjoint: bool) -> None:
    spec = NeighborSpec(fanouts={t: (2, 2) for t in graph().csc}, disjoint=disjoint)
    sampler = GPUSampler(graph(), spec, device=DEVICE)
    for sizes in ([4], [3, 5, 1], [0, 2]):
        seeds = group(sizes)
        together, alone = sampler.begin(seeds).finish(), sampler.begin(list(seeds)).finish()
        assert len(together) == len(sizes)
        for one, other in zip(together, alone, strict=True):
            for name in ("node", "row", "col", "edge_id"):
                for key, values in getattr(one, name).items():
                    assert torch.equal(values, getattr(other, name)[key])
            assert one.num_sampled_nodes == other.num_sampled_nodes
    part = group([3, 5, 1])[1:]
    assert [r.seeds["b"].numel() for r in part] == [5, 1]
    assert [r.key.batch for r in part] == [7, 14]


def test_seeds_that_are_no_nodes() -> None:
    sampler = GPUSampler(graph(), NeighborSpec(fanouts={t: (2,) for t in graph().csc}), device=DEVICE)
    with pytest.raises(InputError, match=r"in \[0, 20\), got 20"):
        sampler.begin(group([3, 2, 3], bad=4)).finish()
    seeds = group([2])
    seeds.node_type = "c"
    with pytest.raises(InputError, match="c"):
        sampler.begin(seeds)
