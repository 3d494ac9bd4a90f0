"""What ``manyhop bench gpu`` measures on: its graphs, seeds, features and ids."""

import torch

from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop_bench.gpu.gather import draw_ids
from manyhop_bench.gpu.graphs import draw_features, draw_labels, draw_seeds, rmat

CPU = torch.device("cpu")


def test_graph_is_the_same_each_time_and_skewed():
    graph, again = rmat(1000, 20_000, CPU), rmat(1000, 20_000, CPU)
    assert torch.equal(graph.row, again.row)
    assert torch.equal(graph.colptr, again.colptr)
    assert graph.row.dtype == torch.int32
    assert graph.num_edges == int(graph.colptr[-1]) == 20_000
    assert 0 <= int(graph.row.min()) <= int(graph.row.max()) < 1000
    degree = torch.diff(graph.colptr).sort(descending=True).values
    assert degree[:50].sum() > 5 * 50 * 20  # the largest columns: over five times the average of 20
    assert graph.colptr[:101][-1] < 0.3 * 20_000  # ids say nothing about degrees: the first tenth has no lion's share


def test_edge_list_agrees_with_the_columns():
    graph = rmat(300, 4000, CPU)
    src, dst = graph.edge_index()
    assert torch.equal(src, graph.row.long())
    assert torch.equal(torch.bincount(dst, minlength=300).cumsum(0), graph.colptr[1:])
    assert bool((torch.diff(dst) >= 0).all())
    assert torch.equal(graph.edge_index(1000, 1500), torch.stack([src, dst])[:, 1000:1500])
    assert torch.equal(graph.engine.csc[HOMOGENEOUS_EDGE].row, graph.row)


def test_seeds_features_and_labels():
    seeds = draw_seeds(100, 7, 16, CPU)
    assert seeds.shape == (7, 16)
    assert torch.equal(seeds.flatten()[:100].sort().values, torch.arange(100))
    whole = draw_features(3000, 4, torch.float16, CPU)
    assert torch.equal(draw_features(500, 4, torch.float16, CPU, first=2000), whole[2000:2500])
    assert len(whole[:, 0].unique()) > 500
    assert draw_labels(50, 7, CPU).unique().numel() == 7


def test_skewed_ids_ask_for_few_rows_often():
    draw = torch.Generator().manual_seed(0)
    uniform, skewed = (draw_ids(10_000, 50_000, s, draw, CPU) for s in (False, True))
    for ids in (uniform, skewed):
        assert 0 <= int(ids.min()) <= int(ids.max()) < 10_000
    tenth = [
        torch.bincount(ids, minlength=10_000).sort(descending=True).values[:1000].sum() for ids in (uniform, skewed)
    ]
    assert tenth[0] < 0.25 * 50_000
    assert tenth[1] > 0.6 * 50_000
