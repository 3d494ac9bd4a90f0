"""What DGL's samplers pick, by way of their blocks, against the exact distributions."""

import itertools

import pytest
import torch
from chi_square import check, image, subsets, successive, uniform

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

N = 6_000
WEIGHTS = [0.5, 1.0, 0.0, 2.0, 4.0]
KEEP = [True, False, True, True, True]


def stars(sampler):
    """The positions that each of N nodes picks among its five edges, slot by slot, in one batch."""
    dst = torch.arange(N).repeat_interleave(5)
    g = dgl.graph((N + torch.arange(5).repeat(N), dst), num_nodes=N + 5)
    g.edata["weight"] = torch.tensor(WEIGHTS).repeat(N)
    g.edata["keep"] = torch.tensor(KEEP).repeat(N)
    block = sampler.sample(g, torch.arange(N))[2][0]
    src, dst = block.edges(order="eid")
    assert torch.equal(dst, dst.sort().values)
    picked = (block.srcdata[dgl.NID][src] - N).split(block.in_degrees().tolist())
    return [tuple(p.tolist()) for p in picked]


def sets(picked):
    return [tuple(sorted(p)) for p in picked]


def sampler(k, **options):
    return manyhop_dgl.NeighborSampler([k], seed=7, **options)


@pytest.mark.parametrize("k", [1, 2])
def test_prob(k):
    exact = image(successive(WEIGHTS, k), lambda picked: tuple(sorted(picked)))
    check(exact, sets(stars(sampler(k, prob="weight"))), sets(stars(sampler(k))))


@pytest.mark.parametrize("k", [1, 2])
def test_mask(k):
    exact = subsets([i for i in range(5) if KEEP[i]], k)
    check(exact, sets(stars(sampler(k, mask="keep"))), sets(stars(sampler(k))))


def test_mask_with_replacement():
    exact = uniform(itertools.product([i for i in range(5) if KEEP[i]], repeat=2))
    check(exact, stars(sampler(2, mask="keep", replace=True)), stars(sampler(2, replace=True)))


def test_uniform_negatives():
    g = dgl.graph(([0, 1, 2], [1, 2, 0]), num_nodes=6)
    edges = torch.zeros(N, dtype=torch.int64)
    _, dst = manyhop_dgl.Uniform(1, seed=0)(g, edges)
    check(uniform(range(6)), dst.tolist(), (dst % 5).tolist())


def test_global_negatives():
    src, dst = [0, 1, 1, 2, 3], [1, 0, 2, 3, 3]
    g = dgl.graph((src, dst))
    edges = torch.zeros(N, dtype=torch.int64)
    for loops in (True, False):
        drawn = manyhop_dgl.GlobalUniform(1, not loops, True, seed=0)(g, edges)
        pairs = list(zip(*(ids.tolist() for ids in drawn), strict=True))
        free = [
            p
            for p in itertools.product(range(4), repeat=2)
            if p not in list(zip(src, dst, strict=True)) and (loops or p[0] != p[1])
        ]
        check(uniform(free), pairs, [(s, max(d, 1)) for s, d in pairs])


def test_random_walks_as_dgl():
    """node2vec's bias, weights and restarts: DGL's own walks and ours fit the exact distribution."""
    out = {0: {1: 1.0, 2: 2.0}, 1: {0: 1.0, 2: 1.0, 3: 3.0}, 2: {0: 1.0}, 3: {}}
    edges = [(u, v, w) for u, to in out.items() for v, w in to.items()]
    g = dgl.graph(tuple(torch.tensor(x) for x in list(zip(*edges, strict=True))[:2]), num_nodes=4)
    g.edata["w"] = torch.tensor([w for *_, w in edges])
    p, q, restart = 0.25, 4.0, torch.tensor([0.0, 0.4])
    biased, stopped = {}, {}
    for u, w in out[1].items():
        first = w / sum(out[1].values())
        share = {v: x * (1 / p if v == 1 else 1.0 if 1 in out[v] else 1 / q) for v, x in out[u].items()}
        biased |= {(1, u, v): first * x / sum(share.values()) for v, x in share.items()} or {(1, u, -1): first}
        stopped |= {(1, u, v): first * 0.6 * x / sum(out[u].values()) for v, x in out[u].items()}
        stopped[1, u, -1] = first * (0.4 if out[u] else 1.0)
    nodes = torch.ones(N, dtype=torch.int64)
    dgl.seed(5)
    for module in (manyhop_dgl, dgl.sampling):
        plain = list(map(tuple, module.random_walk(g, nodes, length=2)[0].tolist()))
        walks = module.node2vec_random_walk(g, nodes, p, q, 2, prob="w").tolist()
        check(biased, map(tuple, walks), plain)
        walks = module.random_walk(g, nodes, length=2, prob="w", restart_prob=restart)[0].tolist()
        check(stopped, map(tuple, walks), plain)
