"""Seed edges on a GPU: larger graphs and batches, seeds that lie on the device already."""

import pytest
import torch
from cpu_cases import OnHost, assert_equal_on_gpu

from manyhop.errors import InputError
from manyhop.graph import EdgeInput, build_graph, place
from manyhop.sampling import (
    BatchKey,
    CPUSampler,
    EdgeRequest,
    EdgeSampler,
    GPUEdgeSampler,
    GPUSampler,
    NegativeSpec,
    NeighborSpec,
)

pytestmark = pytest.mark.gpu
RATES, RATED = ("user", "rates", "item"), ("item", "rated_by", "user")
USERS, ITEMS = 50_000, 300


@pytest.fixture(scope="module")
def graph():
    """Dense enough that a negative item often needs several attempts; times of 1000 days."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(0, USERS, (2_000_000,), generator=generator)
    col = (torch.rand(2_000_000, generator=generator) ** 2 * ITEMS).long()
    days = {t: torch.randint(0, 1000, (n,), generator=generator) for t, n in (("user", USERS), ("item", ITEMS))}
    edges = {RATES: EdgeInput(row=row, col=col), RATED: EdgeInput(row=col, col=row)}
    return build_graph({"user": USERS, "item": ITEMS}, edges, node_time=days)


def batches(graph, num_batches, size, *, timed, device):
    generator = torch.Generator().manual_seed(1)
    csc = graph.csc[RATES]
    for b in range(num_batches):
        position = torch.randint(0, csc.num_edges, (size,), generator=generator)
        src, dst = csc.row[position].long(), torch.searchsorted(csc.colptr, position, right=True) - 1
        time = torch.randint(0, 1000, (size,), generator=generator) if timed else None
        yield EdgeRequest(
            key=BatchKey(5, 1, b),
            edge_type=RATES,
            src=src.to(device),
            dst=dst.to(device),
            time_max=None if time is None else time.to(device),
        )


def check_indices(got, expected):
    for name in ("src_index", "dst_index", "dst_neg_index", "time_max"):
        a, b = getattr(got, name), getattr(expected, name)
        assert (a is None) == (b is None)
        if b is not None:
            assert a.is_cuda
            assert torch.equal(a.cpu(), b), name


@pytest.mark.parametrize("disjoint", [False, True])
def test_wrong_ids_on_the_device(graph, disjoint):
    nodes = CPUSampler(graph, NeighborSpec(fanouts={t: (3,) for t in graph.edge_types}, disjoint=disjoint))
    gpu = GPUEdgeSampler(
        OnHost(nodes),
        graph,
        RATES,
        negatives=NegativeSpec(mode="triplet", exclude_true=True),
        disjoint=disjoint,
        device="cuda",
    )
    src, dst = torch.tensor([3, 2**40], device="cuda"), torch.tensor([5, 6], device="cuda")
    with pytest.raises(InputError, match=str(2**40)):
        gpu.begin([EdgeRequest(key=BatchKey(0, 0, 0), edge_type=RATES, src=src, dst=dst)]).finish()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
def test_equals_the_cpu(graph, device, timed, weighted, mode):
    spec = NeighborSpec(
        fanouts={t: (5, 3) for t in graph.edge_types}, disjoint=timed, temporal="last" if timed else None
    )
    negatives = None if mode is None else NegativeSpec(mode=mode, amount=3, exclude_true=True)
    options, generator = {"negatives": negatives, "disjoint": timed}, torch.Generator().manual_seed(2)
    if weighted and mode is not None:
        options["dst_weight"] = torch.rand(ITEMS, generator=generator) ** 20
        if mode == "binary":
            options["src_weight"] = torch.rand(USERS, generator=generator)
    placed = place(graph, "cuda")
    gpu = GPUEdgeSampler(GPUSampler(placed, spec, device="cuda"), placed, RATES, device="cuda", **options)
    cpu = EdgeSampler(CPUSampler(graph, spec), graph, RATES, **options)
    given, on_host = (list(batches(graph, 4, 1000, timed=timed, device=where)) for where in (device, "cpu"))
    for ((got,), _), request in zip(gpu.begin(given).finish(), on_host, strict=True):
        expected = cpu.sample(request)
        check_indices(got, expected)
        assert_equal_on_gpu(got.subgraph, expected.subgraph)
