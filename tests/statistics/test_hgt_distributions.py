"""HGT's draws against successive sampling in proportion to the squared budgets."""

import numpy as np
import torch
from chi_square import check, joint, subsets, successive

from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, CPUHGTSampler, HGTSpec, NodeRequest, ReferenceHGTSampler

CITES = ("paper", "cites", "paper")
BATCHES = 2500


def sampled(ends, num_nodes, n, seeds, hop=1):
    """The nodes that one hop adds, over many batches."""
    row, col = torch.tensor(ends).t()
    graph = build_graph({"paper": num_nodes}, {CITES: EdgeInput(row=row, col=col)})
    sampler = ReferenceHGTSampler(graph, HGTSpec(num_samples={"paper": n}))
    result = []
    for batch in range(BATCHES):
        out = sampler.sample(NodeRequest(key=BatchKey(4, 0, batch), seeds={"paper": torch.tensor(seeds)}))
        counts = out.num_sampled_nodes["paper"]
        begin = sum(counts[:hop])
        result.append(tuple(out.node["paper"][begin : begin + counts[hop]].tolist()))
    return result


# Seeds 0 and 1 have 3 and 2 neighbours: budgets of 2, 3, 4, 5 are 1/3, 1/3 + 1/2, 1/3, 1/2.
ENDS = [(2, 0), (3, 0), (4, 0), (3, 1), (5, 1)]
BUDGET = {2: 1 / 3, 3: 1 / 3 + 1 / 2, 4: 1 / 3, 5: 1 / 2}


def test_draws_are_in_proportion_to_the_squared_budget():
    for k in (1, 2, 3):
        squared = successive({v: b * b for v, b in BUDGET.items()}, k)
        not_squared = successive(BUDGET, k)
        rng = np.random.default_rng(0)
        sequences = list(not_squared)
        at = rng.choice(len(sequences), BATCHES, p=list(not_squared.values()))
        check(squared, sampled(ENDS, 6, (k,), [0, 1]), [sequences[i] for i in at])


def test_columns_of_more_than_fifty_are_cut_uniformly():
    ends = [(v, 0) for v in range(1, 53)]  # 52 neighbours: two are left out
    kept = sampled(ends, 53, (100,), [0])
    left_out = [tuple(sorted(set(range(1, 53)) - set(k))) for k in kept]
    first = [tuple(sorted((1 + min(pair[0], 25), pair[1]))) for pair in left_out]
    pairs_exact = subsets(range(1, 53), 2)
    by_ten = _coarse(pairs_exact)
    check(by_ten, [_cell(p) for p in left_out], [_cell(p) for p in first])


def test_edges_of_long_columns_are_cut_uniformly():
    """52 sources are all there: two edges are left out. Another copy of the seed leaves out others."""
    row, col = torch.arange(1, 53), torch.zeros(52, dtype=torch.int64)
    graph = build_graph({"paper": 53}, {CITES: EdgeInput(row=row, col=col)})
    sampler = CPUHGTSampler(graph, HGTSpec(num_samples={"paper": ()}))
    seeds = torch.cat([torch.arange(53), torch.zeros(1, dtype=torch.int64)])
    cells = []
    for batch in range(BATCHES):
        out = sampler.sample(NodeRequest(key=BatchKey(4, 0, batch), seeds={"paper": seeds}))
        kept = [set(out.row[CITES][out.col[CITES] == i].tolist()) for i in (0, 53)]
        cells.append([_cell(tuple(sorted(set(range(1, 53)) - k))) for k in kept])
    of_one = _coarse(subsets(range(1, 53), 2))
    check(of_one, [a for a, _ in cells], [(min(a), min(a)) for a, _ in cells])
    check(joint(of_one, of_one), [tuple(pair) for pair in cells], [(a, a) for a, _ in cells])


def _cell(pair):
    return tuple((v - 1) // 13 for v in pair)


def _coarse(exact):
    result = {}
    for pair, p in exact.items():
        result[_cell(pair)] = result.get(_cell(pair), 0) + p
    return result


def test_hops_are_independent():
    """A chain of choices: what the first hop picks tells nothing about the pick of the second."""
    ends = [(1, 0), (2, 0)] + [(v, u) for u in (1, 2) for v in (3, 4)]
    one, two = (sampled(ends, 5, (1, 1), [0], hop) for hop in (1, 2))
    pairs = list(zip(one, two, strict=True))
    # After 1 (say) is in, the budgets of 2, 3, 4 are 1/2 each.
    exact = {((a,), (b,)): 1 / 6 for a in (1, 2) for b in (3 - a, 3, 4)}
    check(exact, pairs, [(a, (3,)) for a, _ in pairs])
