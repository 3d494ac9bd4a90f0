"""What stands for pylibcugraph where there is no GPU: graphs of numpy arrays, sampled by the rules of cuGraph 26.10.

Ranks of a run give their edges to each other, and meet in every call, as with cuGraph: a rank that does not come makes
the others wait. Edges of a hop come in no order, and seeds are not made unique.
"""

import sys
from types import ModuleType

import numpy as np
import torch

from manyhop.ranks import world
from manyhop_cugraph import binding

CPU = torch.device("cpu")
calls = []
"""The number of seeds of each call of this rank."""


def gathered(value):
    import torch.distributed as dist

    if world.current_size() == 1:
        return [value]
    every = [None] * world.current_size()
    dist.all_gather_object(every, value)
    return every


class Graph:
    def __init__(self, resources, properties, asker, neighbor, *, vertices_array, edge_id_array, **columns):
        assert properties == (False, True)
        for name in ("store_transposed", "renumber", "do_expensive_check"):
            assert columns.pop(name, False) is False
        names = {"edge_type_array": "type", "weight_array": "weight", "edge_start_time_array": "time"}
        mine = {names[name]: column for name, column in columns.items()}
        mine |= {"asker": asker, "neighbor": neighbor, "id": edge_id_array, "vertices": vertices_array}
        mine = {name: np.array(column[0] if isinstance(column, list) else column) for name, column in mine.items()}
        assert mine["asker"].dtype == mine["neighbor"].dtype == mine["id"].dtype
        self.dtype, self.num_local = mine["asker"].dtype, mine["asker"].size
        every = gathered(mine)
        self.columns = {name: np.concatenate([part[name] for part in every]) for name in mine}
        order = np.argsort(self.columns["asker"], kind="stable")
        vertices = np.sort(self.columns.pop("vertices"))
        assert np.array_equal(vertices, np.arange(vertices.size))
        self.columns = {name: column[order] for name, column in self.columns.items()}
        self.begins = np.searchsorted(self.columns["asker"], np.arange(vertices.size + 1))


def neighbor_sample(
    resources, graph, start, fanouts, *, starting_vertex_label_offsets, num_edge_types, with_replacement,
    do_expensive_check, prior_sources_behavior, deduplicate_sources, return_hops, renumber, compression,
    use_edge_weights_as_biases, random_state, starting_vertex_start_times=None, starting_vertex_end_times=None,
    temporal_sampling_comparison=None, fixed_window=False, disjoint_sampling=False, neighbor_selection="random",
):  # fmt: skip
    assert start.dtype == graph.dtype
    assert fanouts.dtype == np.int32
    assert starting_vertex_label_offsets[-1] == len(start)
    assert deduplicate_sources
    assert return_hops
    assert not renumber
    first = any(fanouts[:num_edge_types])
    asked = any(gathered(len(start)))
    if not asked or (not first and prior_sources_behavior == "exclude"):
        raise RuntimeError("CUGRAPH_UNKNOWN_ERROR std::get: wrong index for variant")
    if world.current_size() > 1 and len(set(gathered(random_state))) == 1:
        raise ValueError("seed must be different on each GPU")
    calls.append(len(start))
    rng = np.random.default_rng(random_state)
    num_hops = len(fanouts) // num_edge_types
    found, counts, labels = [], [], len(starting_vertex_label_offsets) - 1
    for label in range(labels):
        begin, end = starting_vertex_label_offsets[label : label + 2]
        frontier, asked, visited = list(map(int, start[begin:end])), set(), set(map(int, start[begin:end]))
        window = None
        if temporal_sampling_comparison is not None:
            assert (temporal_sampling_comparison, fixed_window) == ("monotonically_increasing", True)
            assert disjoint_sampling
            assert len(frontier) == 1
            window = starting_vertex_start_times[begin], starting_vertex_end_times[begin]
        for hop in range(num_hops):
            edges = []
            for vertex in frontier:
                for kind, k in enumerate(fanouts[hop * num_edge_types : (hop + 1) * num_edge_types]):
                    edges += pick(graph, vertex, kind, int(k), rng, window, visited if disjoint_sampling else (),
                                  replace=with_replacement, weighted=use_edge_weights_as_biases,
                                  last=neighbor_selection == "last", several=num_edge_types > 1)  # fmt: skip
            if disjoint_sampling:  # each node is reached by one edge
                first = {int(graph.columns["neighbor"][e]): e for e in rng.permutation(edges).astype(int).tolist()}
                edges = list(first.values())
                visited |= set(first)
            asked |= set(frontier)
            new = {int(v) for v in graph.columns["neighbor"][edges]} if edges else set()
            frontier = sorted(new - asked) if prior_sources_behavior == "exclude" else sorted(new | set(frontier))
            found += rng.permutation(edges).astype(int).tolist()
            counts.append(len(edges))
        counts += [0] * (len(fanouts) - num_hops)
    out = {name: graph.columns[column][found] for name, column in
           {"majors": "asker", "minors": "neighbor", "edge_id": "id", "edge_type": "type"}.items()
           if column in graph.columns}  # fmt: skip
    return out | {"label_hop_offsets": np.cumsum([0, *counts], dtype=np.int64)}


def pick(graph, vertex, kind, k, rng, window, visited, *, replace, weighted, last, several):
    edges = np.arange(graph.begins[vertex], graph.begins[vertex + 1])
    columns = graph.columns
    if several:
        edges = edges[columns["type"][edges] == kind]
    if window is not None:
        edges = edges[(columns["time"][edges] >= window[0]) & (columns["time"][edges] <= window[1])]
    edges = edges[~np.isin(columns["neighbor"][edges], list(visited))]
    if k < 0:
        return edges.tolist()  # whatever they weigh
    if weighted:
        edges = edges[columns["weight"][edges] > 0]
    if k == 0 or edges.size == 0:
        return []
    if last:
        return edges[np.argsort(columns["time"][edges], kind="stable")][-k:].tolist()
    weight = columns["weight"][edges].astype(float) if weighted else np.ones(edges.size)
    size = k if replace else min(k, edges.size)
    return rng.choice(edges, size, replace=replace, p=weight / weight.sum()).tolist()


def install(patch=setattr):
    """Put it in place of pylibcugraph; ``patch(object, name, value)``."""
    module = ModuleType("pylibcugraph")
    module.GraphProperties = lambda *, is_symmetric, is_multigraph: (is_symmetric, is_multigraph)
    module.SGGraph = module.MGGraph = Graph
    module.neighbor_sample = neighbor_sample
    sys.modules["pylibcugraph"] = module
    handles = {}

    def handle(*, timeout):
        ours = world.init(timeout=timeout)
        return handles.setdefault(world.token(), binding.Handle(None, None, ours.world_size, ()))

    from manyhop_cugraph import graph

    patch(graph, "handle", handle)
    return module
