"""Small batches of all kinds on a GPU, for tools that watch what kernels read and write.

    PYTORCH_ALLOC_CONF=expandable_segments:False compute-sanitizer --tool memcheck python tests/gpu/memcheck.py
    python tests/gpu/memcheck.py weighted induced    # some of them

Segments of fixed sizes, since a read beyond a tensor is seen only where nothing lies behind it.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

import manyhop_pyg
from manyhop.features import gather, pin

RANDOM = torch.Generator().manual_seed(0)


def edges(num_src: int, num_dst: int, count: int) -> torch.Tensor:
    return torch.stack([torch.randint(0, n, (count,), generator=RANDOM) for n in (num_src, num_dst)])


def make_data(num_nodes: int, num_edges: int) -> Data:
    return Data(
        x=torch.randn(num_nodes, 33, generator=RANDOM),
        y=torch.randint(0, 5, (num_nodes,), generator=RANDOM).to(torch.int8),
        edge_index=edges(num_nodes, num_nodes, num_edges),
        weight=torch.rand(num_edges, generator=RANDOM),
        time=torch.randint(0, 50, (num_nodes,), generator=RANDOM),
    )


def make_typed_data() -> HeteroData:
    data = HeteroData()
    for name, count in (("paper", 3000), ("author", 700)):
        data[name].x = torch.randn(count, 7, generator=RANDOM)
    data["author", "writes", "paper"].edge_index = edges(700, 3000, 40_000)
    data["paper", "cites", "paper"].edge_index = edges(3000, 3000, 40_000)
    data["paper", "written", "author"].edge_index = edges(3000, 700, 40_000)
    return data


def loaders(name: str) -> Iterable[Any]:
    """The loaders of one kind; of ``gather``, rows of all sorts of memory."""
    large = name == "pinned"  # what is small is not pinned
    data, typed = make_data(300_000, 9 << 20) if large else make_data(3000, 40_000), make_typed_data()
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 1, "device": "cuda"}
    seeds, fans = torch.arange(1000), [5, 3]
    more: dict[str, dict[str, Any]] = {
        "plain": {},
        "threads": {"num_workers": 2, "transform": lambda batch: batch},
        "pinned": {"placement": "pinned-cuda"},
        "host": {"placement": "cpu-cuda"},
        "weighted": {"weight_attr": "weight"},
        "temporal": {"time_attr": "time"},
        "induced": {"subgraph_type": "induced"},
        "disjoint": {"disjoint": True, "replace": True},
        "wide": {"num_neighbors": [100, -1]},
        "padded": {"pad": "auto"},
    }
    if name in more:
        options |= {"num_neighbors": fans} | more[name]
        yield manyhop_pyg.NeighborLoader(data, input_nodes=seeds, **options)
    elif name == "links":
        for negatives in ("binary", "triplet"):
            yield manyhop_pyg.LinkNeighborLoader(
                data, fans, data.edge_index[:, :1000], neg_sampling=negatives, exclude_true_negatives=True, **options
            )
    elif name == "typed":
        yield manyhop_pyg.NeighborLoader(typed, fans, ("paper", seeds), **options)
        yield manyhop_pyg.HGTLoader(typed, [8, 8], ("paper", seeds), **options)
    elif name == "gather":
        yield [gather_all()]
    else:
        raise SystemExit(f"expected some of {', '.join([*more, *OTHERS])}, got {name}")


OTHERS = ("links", "typed", "gather")
KINDS = (
    "plain", "threads", "pinned", "host", "weighted", "temporal", "induced", "disjoint", "wide", "padded", *OTHERS,
)  # fmt: skip


def gather_all() -> torch.Tensor:
    """Rows of all lengths from 1 byte on, from the GPU and from pinned memory; some of them twice."""
    rows = torch.zeros(())
    host = torch.empty(64 << 20, dtype=torch.uint8)  # in pages of its own
    pin(host)
    for width in (1, 3, 8, 33, 128, 1000):
        for dtype in (torch.uint8, torch.float16, torch.float64):
            table = torch.randint(0, 200, (777, width), generator=RANDOM).to(dtype)
            there, far = table.cuda(), host[: table.nbytes].view(dtype).view(777, width).copy_(table)
            ids = torch.randint(0, 777, (2000,), generator=RANDOM).cuda()
            for source in (there, far):
                rows = gather([(source, ids), (there[:, :1], ids.int())])[0]
                assert torch.equal(rows, there[ids])
    return rows


def main() -> None:
    for name in sys.argv[1:] or KINDS:
        count = sum(1 for loader in loaders(name) for _ in loader)
        torch.cuda.synchronize()
        print(name, count, flush=True)


if __name__ == "__main__":
    main()
