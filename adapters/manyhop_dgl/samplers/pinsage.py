"""DGL's samplers of PinSAGE: the nodes that random walks visit most."""

from __future__ import annotations

from collections.abc import Sequence

import dgl
import torch
from dgl import DGLGraph
from dgl.sampling import PinSAGESampler as PinSAGESamplerOfDGL
from dgl.sampling import RandomWalkNeighborSampler as RandomWalkNeighborSamplerOfDGL
from torch import Tensor

from manyhop.arguments import integer, real
from manyhop.errors import InputError
from manyhop_dgl.graph.topology import canonical, topology_of
from manyhop_dgl.samplers.arguments import Keys, as_ids
from manyhop_dgl.samplers.walks import walk, walk_sampler, walk_spec
from manyhop_dgl.typing import EdgeName


class RandomWalkNeighborSampler(RandomWalkNeighborSamplerOfDGL):  # type: ignore[misc]  # DGL is untyped
    """DGL's ``RandomWalkNeighborSampler``: neighbours of a node are the most visited nodes of walks from it.

    A walk traverses the metapath up to ``num_traversals`` times, and ends after each with ``termination_prob``. Among
    nodes with equal visits, the higher ids are used, as in DGL.

    Args:
        G: the graph, on the CPU.
        num_traversals: traversals of the metapath per walk.
        termination_prob: probability that a walk ends after each traversal.
        num_random_walks: walks per seed node.
        num_neighbors: neighbours per seed node.
        metapath: edge types that lead from a node type back to it; ``None``: the only edge type, once.
        weight_column: name of the edge data with the numbers of visits.
        seed: determines the walks, with the number of the call; ``None``: each call draws a key, which
            ``dgl.seed`` fixes, and ``torch.manual_seed`` where that was never called.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    def __init__(
        self,
        G: DGLGraph,
        num_traversals: int,
        termination_prob: float,
        num_random_walks: int,
        num_neighbors: int,
        metapath: Sequence[EdgeName] | None = None,
        weight_column: str = "weights",
        *,
        seed: int | None = None,
    ) -> None:
        if not isinstance(G, DGLGraph):
            raise InputError(f"Expected G as a DGLGraph, got {type(G).__name__}. Convert it: to_dgl().")
        topology = topology_of(G, edge_dir="out")
        types = [canonical(t, topology.edge_types, "metapath") for t in metapath or topology.edge_types]
        if not types or types[0][0] != types[-1][2] or (metapath is None and len(types) != 1):
            raise InputError(f"Expected a metapath that leads back to the node type where it begins, got {metapath!r}.")
        if not real("termination_prob", termination_prob, "a probability") <= 1:
            raise InputError(f"Expected termination_prob of at most 1, got {termination_prob}.")
        numbers = (
            integer("num_traversals", num_traversals, 1),
            termination_prob,
            integer("num_random_walks", num_random_walks, 1),
            integer("num_neighbors", num_neighbors, 1),
        )
        self._keys = Keys(seed)
        RandomWalkNeighborSamplerOfDGL.__init__(self, G, *numbers, metapath=types, weight_column=weight_column)
        walk_sampler(topology, walk_spec(topology, self.full_metapath, self.restart_prob))  # checks the metapath

    def __call__(self, seed_nodes: object) -> DGLGraph:
        """Sample neighbours.

        Args:
            seed_nodes: ``[num_seeds]`` ids, on the CPU or on a GPU; each copy of a duplicate has its own neighbours.

        Returns:
            A graph of all nodes of the type, on the seeds' device, with an edge from each neighbour to its seed node.

        Raises:
            InputError: seeds out of range.
        """
        topology = topology_of(self.G, edge_dir="out")
        spec = walk_spec(topology, self.full_metapath, self.restart_prob)
        seeds = as_ids(seed_nodes, "seed nodes").repeat_interleave(self.num_random_walks)
        node = walk(topology, spec, seeds, self._keys.next()).node.to(topology.index_dtype)
        visited = node[:, self.metapath_hops :: self.metapath_hops]
        visited = visited.reshape(-1, self.num_random_walks * self.num_traversals)
        src, visits = _most_visited(visited, self.num_neighbors)
        dst = node[:: self.num_random_walks, :1].expand_as(src)
        found = visits > 0
        num_nodes = {self.ntype: self.G.num_nodes(self.ntype)}
        neighbors = dgl.heterograph({(self.ntype, "_E", self.ntype): (src[found], dst[found])}, num_nodes)
        neighbors.edata[self.weight_column] = visits[found]
        return neighbors


class PinSAGESampler(RandomWalkNeighborSampler, PinSAGESamplerOfDGL):  # type: ignore[misc]
    """DGL's ``PinSAGESampler`` (arXiv 1806.01973): walks in a bipartite graph, there and back.

    Args:
        G: the graph, on the CPU, with one edge type from ``ntype`` to ``other_type``, and one back.
        ntype: node type of the seed nodes.
        other_type: the other node type.
        num_traversals: times there and back per walk.
        termination_prob: probability that a walk ends each time it is back.
        num_random_walks: walks per seed node.
        num_neighbors: neighbours per seed node.
        weight_column: name of the edge data with the numbers of visits.
        seed: as for :class:`RandomWalkNeighborSampler`.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
    """

    def __init__(
        self,
        G: DGLGraph,
        ntype: str,
        other_type: str,
        num_traversals: int,
        termination_prob: float,
        num_random_walks: int,
        num_neighbors: int,
        weight_column: str = "weights",
        *,
        seed: int | None = None,
    ) -> None:
        there_and_back = []
        for ends in ((ntype, other_type), (other_type, ntype)):
            types = [t for t in topology_of(G, edge_dir="out").edge_types if (t[0], t[2]) == ends]
            if len(types) != 1:
                raise InputError(f"Expected one edge type from '{ends[0]}' to '{ends[1]}', got {types}.")
            there_and_back.append(types[0])
        RandomWalkNeighborSampler.__init__(
            self,
            G,
            num_traversals,
            termination_prob,
            num_random_walks,
            num_neighbors,
            there_and_back,
            weight_column,
            seed=seed,
        )


def _most_visited(visited: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the nodes that each row has most, and how often: both ``[num_rows, min(k, num_visited)]``.

    Args:
        visited: ``[num_rows, num_visited]`` nodes, or -1.
        k: number per row; missing nodes have count 0.
    """
    node = visited.sort(dim=1, descending=True).values
    first = torch.ones_like(node, dtype=torch.bool)
    torch.ne(node[:, 1:], node[:, :-1], out=first[:, 1:])
    number = first.cumsum(1) - 1
    distinct = torch.zeros_like(node).scatter_(1, number, node)
    visits = torch.zeros_like(node).scatter_add_(1, number, torch.ones_like(node)).masked_fill_(distinct < 0, 0)
    visits, order = visits.sort(dim=1, descending=True, stable=True)
    return distinct.gather(1, order)[:, :k], visits[:, :k]
