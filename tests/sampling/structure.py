"""What the contract says of a sample, but for which edges are picked."""

from collections import Counter

import numpy as np
import torch

from manyhop.sampling import BatchKey, NodeRequest

SPECS = {
    "plain": {},
    "all": {"expand": "all"},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "weighted": {"weighted": True},
}
SEEDS = [{"a": [3, 3, 7], "b": [0, 5, 0]}, {"b": [2]}, {"a": [], "b": []}, {"a": [13, 1]}]


def request(seeds, batch=0, **times):
    def tensors(values):
        return {t: torch.tensor(v, dtype=torch.int64) for t, v in values.items()}

    return NodeRequest(key=BatchKey(1, 0, batch), seeds=tensors(seeds), **{k: tensors(v) for k, v in times.items()})


def check(world, spec, asked, sample):
    """Check all that the contract says of a sample but which edges are picked."""
    trees = sample.tree or {t: torch.zeros_like(n) for t, n in sample.node.items()}
    running, first = 0, {}
    for t in world.graph.node_types:
        assert sum(sample.num_sampled_nodes[t]) == sample.node[t].numel()
    for t, seeds in asked.seeds.items():
        n = seeds.numel()
        assert sample.node[t][:n].tolist() == seeds.tolist()
        assert sample.num_sampled_nodes[t][0] == n
        if spec.disjoint:
            assert trees[t][:n].tolist() == list(range(running, running + n))
        running += n
    names = {t: list(zip(trees[t].tolist(), sample.node[t].tolist(), strict=True)) for t in sample.node}
    for t, entries in names.items():
        n = sample.num_sampled_nodes[t][0]
        assert len(set(entries)) == len(set(entries[:n])) + len(entries) - n, "each node once, but for seeds"
        first[t] = {entry: i for i, entry in reversed(list(enumerate(entries)))}
    hops = len(next(iter(spec.fanouts.values())))
    bounds = {t: np.cumsum([0, *c]) for t, c in sample.num_sampled_nodes.items()}
    begin_edge = dict.fromkeys(spec.fanouts, 0)
    seen = {t: bounds[t][1] for t in names}
    for hop in range(hops):
        begin = {t: bounds[t][hop] if spec.expand == "new" else 0 for t in names}
        end = {t: bounds[t][hop + 1] for t in names}
        for t, (rows, cols) in world.ends.items():
            here = slice(begin_edge[t], begin_edge[t] + sample.num_sampled_edges[t][hop])
            begin_edge[t] = here.stop
            row, col, ids = (x[t][here].tolist() for x in (sample.row, sample.col, sample.edge_id))
            assert col == sorted(col)
            for r, c, e in zip(row, col, ids, strict=True):
                assert (sample.node[t[0]][r], sample.node[t[2]][c]) == (rows[e], cols[e])
                assert trees[t[0]][r] == trees[t[2]][c]
                assert r == first[t[0]][names[t[0]][r]]
                assert r <= seen[t[0]], "order of first occurrence"
                seen[t[0]] = max(seen[t[0]], r + 1)
            picked = Counter(col)
            for c in range(begin[t[2]], end[t[2]]):
                node = names[t[2]][c][1]
                there = np.flatnonzero(cols == node)
                if spec.weighted and world.graph.csc[t].weight is not None:
                    there = there[world.weight[t][there] > 0]
                k = spec.fanouts[t][hop]
                expected = len(there) if k < 0 else (k if spec.replace and len(there) else min(k, len(there)))
                assert picked.pop(c, 0) == expected
                mine = [e for e, at in zip(ids, col, strict=True) if at == c]
                assert (spec.replace and k >= 0) or len(set(mine)) == len(mine)
            assert not picked, "only the frontier asks"
    assert begin_edge == {t: e.numel() for t, e in sample.edge_id.items()}
    assert seen == {t: len(entries) for t, entries in names.items()}
