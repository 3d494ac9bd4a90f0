"""Samplers of seed edges: DGL's graphs of these and of negatives, and blocks around their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import dgl
import torch
from dgl import DGLGraph, graph_index, heterograph_index
from dgl.backend import from_dgl_nd, to_dgl_nd
from dgl.dataloading import BlockSampler
from dgl.dataloading import EdgePredictionSampler as EdgePredictionSamplerOfDGL
from dgl.heterograph import DGLBlock
from dgl.transforms.functional import _CAPI_DGLCompactGraphs
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.loading import BatchContext, batch_key, current_batch
from manyhop.sampling import BatchKey
from manyhop_dgl.samplers.arguments import Keys, by_type, check_names, check_sampler
from manyhop_dgl.samplers.blocks import (
    TypeFrames,
    frames_of_ids,
    lazy_frames,
    make_column,
    make_frame,
    move,
    put_rows,
)
from manyhop_dgl.samplers.negatives import (
    NegativeSampler,
    check_exclude,
    draws_by_key,
    edges_by_type,
    edges_to_exclude,
    keyed,
    on_host,
    pairs_of,
)
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.plan import as_device, parse_device
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors
from manyhop_dgl.typing import EdgeName, GraphLike, Names, Nodes, Pairs


def compact_pairs(
    g: GraphLike, ends: Mapping[EdgeType, Pairs], negatives: Mapping[EdgeType, Pairs] | None
) -> tuple[list[heterograph_index.HeteroGraphIndex], dict[NodeType, Tensor]]:
    """Number the nodes of seed edges and negatives where they first occur.

    The sources precede the destinations of each edge type, and the seed edges precede the negatives.

    Args:
        g: the graph.
        ends: canonical edge type -> sources and destinations of the seed edges.
        negatives: sources and destinations of the negatives, if any.

    Returns:
        The index of a graph of the seed edges, and of the negatives, if any; and by node type ``[num_nodes]`` node ids.
    """
    node_types, edge_types = list(g.ntypes), list(g.canonical_etypes)
    num_nodes = [g.num_nodes(t) for t in node_types]
    given = [ends] if negatives is None else [ends, negatives]
    indices = [index_of_pairs(node_types, edge_types, num_nodes, pairs) for pairs in given]
    none = to_dgl_nd(torch.empty(0, dtype=g.idtype))
    compact, found = _CAPI_DGLCompactGraphs(indices, [none] * len(node_types))
    return list(compact), dict(zip(node_types, map(from_dgl_nd, found), strict=True))


def graphs_of_pairs(
    nodes: Mapping[NodeType, Tensor],
    ids: Mapping[EdgeType, Tensor],
    indices: Sequence[heterograph_index.HeteroGraphIndex],
    frames: TypeFrames | None,
    node_masks: Mapping[NodeType, Tensor] | None = None,
    edge_masks: Sequence[Mapping[EdgeType, Tensor] | None] = (None, None),
) -> list[DGLGraph]:
    """Build the graph of seed edges, and the graph of negatives if there are any.

    Args:
        nodes: node type -> ids.
        ids: edge type -> ids of the seed edges.
        indices: of the graphs.
        frames: of the sampled graph: the first graph has its data, gathered at the first access.
        node_masks: which nodes are real.
        edge_masks: which seed edges are real, and which negatives.
    """
    graphs: list[DGLGraph] = []
    for index, masks in zip(indices, edge_masks, strict=False):
        if not graphs:
            of_nodes, of_edges = (None, None) if frames is None else frames
            edges = frames_of_ids(dgl.EID, list(ids.values()), of_edges)
        else:
            of_nodes, edges = None, [make_frame(index.num_edges(i), {}) for i in range(len(ids))]
        rows = frames_of_ids(dgl.NID, list(nodes.values()), of_nodes)
        for frame, (node_type, some) in zip(rows, nodes.items(), strict=True):
            if node_masks is not None:
                frame._columns["node_mask"] = make_column(node_masks[node_type][: some.shape[0]])
        for frame, edge_type in zip(edges, ids, strict=True):
            if masks is not None and edge_type in masks:
                frame._columns["edge_mask"] = make_column(masks[edge_type])
        graphs.append(dgl.DGLGraph(index, list(nodes), [relation for _, relation, _ in ids], rows, edges))
    return graphs


def index_of_pairs(
    node_types: list[NodeType],
    edge_types: list[EdgeType],
    num_nodes: list[int],
    pairs: Mapping[EdgeType, Pairs],
) -> heterograph_index.HeteroGraphIndex:
    """Build the index of a graph with these edges, without DGL's checks; on torch tensors if DGL has none.

    Args:
        node_types: of the graph.
        edge_types: of the graph, canonical.
        num_nodes: of each node type.
        pairs: canonical edge type -> sources and destinations ``[num_edges]``, on one device.
    """
    at = {t: i for i, t in enumerate(node_types)}
    none = next(iter(pairs.values()))[0][:0]
    relations = []
    for edge_type in edge_types:
        src, dst = pairs.get(edge_type, (none, none))
        ends = at[edge_type[0]], at[edge_type[2]]
        relations.append(
            heterograph_index.create_unitgraph_from_coo(
                1 if ends[0] == ends[1] else 2,
                num_nodes[ends[0]],
                num_nodes[ends[1]],
                src,
                dst,
                ["coo", "csr", "csc"],
            )
        )
    metagraph = _metagraph(tuple(node_types), tuple(edge_types))
    return heterograph_index.create_heterograph_from_relations(metagraph, relations, dgl.utils.toindex(num_nodes))


@lru_cache(maxsize=256)
def _metagraph(node_types: tuple[NodeType, ...], edge_types: tuple[EdgeType, ...]) -> graph_index.GraphIndex:
    at = {t: i for i, t in enumerate(node_types)}
    src, dst = [at[s] for s, _, _ in edge_types], [at[d] for _, _, d in edge_types]
    return graph_index.from_coo(len(at), src, dst, True)


class EdgePredictionSampler(EdgePredictionSamplerOfDGL):  # type: ignore[misc]  # DGL is untyped
    """See :func:`as_edge_prediction_sampler`."""

    def __init__(
        self,
        sampler: BlockSampler,
        exclude: object = None,
        reverse_eids: object = None,
        reverse_etypes: Mapping[EdgeName, EdgeName] | None = None,
        negative_sampler: NegativeSampler = None,
        prefetch_labels: Names = None,
        *,
        seed: int | None = None,
    ) -> None:
        check_sampler(sampler)
        check_exclude(exclude, reverse_eids, reverse_etypes)
        check_names(prefetch_labels, "prefetch_labels")
        if negative_sampler is not None and not callable(negative_sampler):
            raise InputError(f"Expected a negative sampler to be callable, got {negative_sampler!r}.")
        negative_sampler = keyed(negative_sampler)
        super().__init__(sampler, exclude, on_host(reverse_eids), reverse_etypes, negative_sampler, prefetch_labels)
        if seed is not None and isinstance(sampler, EngineSampler):
            raise InputError("The sampler of nodes has the seed of both: pass seed to it.")
        self._keys = Keys(seed)

    def next_key(self) -> BatchKey:
        """Return the key of one call: of the sampler of nodes too, if that is one of this package."""
        return self.sampler.next_key() if isinstance(self.sampler, EngineSampler) else self._keys.next()

    def sample(self, g: GraphLike, seed_edges: object) -> Any:
        """Sample around seed edges.

        Args:
            g: the graph, on the CPU.
            seed_edges: ``[num_edges]`` edge ids, or a dict, edge type -> edge ids.

        Returns:
            Input nodes, the graph of the seed edges, the graph of the negatives (where there is a negative sampler)
            and the blocks.

        Raises:
            InputError: edges of unknown types, out of range, not on the CPU.
        """
        key = self.next_key()
        edges, pairs, nodes, exclude = self.around(g, seed_edges, key)
        none = torch.empty(0, dtype=g.idtype)
        ids = {t: edges.get(t, none) for t in g.canonical_etypes}
        graphs = graphs_of_pairs(nodes, ids, pairs, lazy_frames(g))
        there = parse_device("output_device", self.output_device)
        if there.type != "cpu":
            graphs = move(graphs, there)
        if not isinstance(self.sampler, EngineSampler):
            exclude = _copied(exclude)
        with BatchContext(key, current_batch()):  # the sampler beneath has the key of the negatives
            input_nodes, _, blocks = self.sampler.sample(g, as_seed_nodes(nodes), exclude)
        return self.assign_lazy_features((input_nodes, *graphs, blocks))

    def check_prefetching(self, node_types: Sequence[NodeType], edge_types: Sequence[EdgeType]) -> None:
        """Raise InputError for data of types that there are not, or without a type if there are multiple."""
        by_type(self.prefetch_labels or {}, edge_types, "edge", "prefetch_labels", "list of names")
        if isinstance(self.sampler, EngineSampler):
            self.sampler.check_prefetching(node_types, edge_types)

    def assign_lazy_features(self, result: Any) -> object:
        """Name in the graph of the seed edges the data that the loader shall gather.

        Raises:
            InputError: data of types that the graph does not have, or without a type if it has multiple.
        """
        by_type(self.prefetch_labels or {}, result[1].canonical_etypes, "edge", "prefetch_labels", "list of names")
        return super().assign_lazy_features(result)

    def sample_tensors(
        self,
        g: GraphLike,
        seed_edges: object,
        *,
        key: tuple[int, int, int] | None = None,
        device: torch.device | str | None = None,
        node_features: Names = None,
        edge_features: Names = None,
    ) -> EdgeTensors:
        """Sample around seed edges, as :meth:`sample`, into tensors: see :func:`manyhop_dgl.sample_tensors`.

        Negatives are drawn and nodes are numbered on the CPU; the blocks are sampled on the device.

        Raises:
            InputError: as ``sample``; the sampler of nodes is not one of this package.
            FeatureError: features that the graph does not have.
        """
        if not isinstance(self.sampler, EngineSampler):
            raise InputError(
                "Expected a sampler of nodes of manyhop_dgl beneath, to sample without DGL's objects, got a "
                f"{type(self.sampler).__name__}."
            )
        there = as_device(device)
        own = self.next_key() if key is None else batch_key(key)
        edges, pairs, nodes, exclude = self.around(g, seed_edges, own)
        sample = self.sampler.sample_tensors(
            g,
            as_seed_nodes(nodes),
            exclude,
            key=own,
            device=there,
            node_features=node_features,
            edge_features=edge_features,
        )
        return as_tensors(g, edges, pairs, sample, there)

    def around(
        self, g: GraphLike, seed_edges: object, key: BatchKey
    ) -> tuple[dict[EdgeType, Tensor], list[heterograph_index.HeteroGraphIndex], dict[NodeType, Tensor], object]:
        """Return seed edges by type, indices of pairs, the nodes to sample around, and the edges to exclude."""
        edges = edges_by_type(g, seed_edges)
        given = edges if isinstance(seed_edges, Mapping) else next(iter(edges.values()))
        ends = {t: g.find_edges(ids, etype=t) for t, ids in edges.items()}
        negatives = self._negatives(g, given, ends, key)
        pairs, nodes = compact_pairs(g, ends, negatives)
        exclude = edges_to_exclude(g, self.exclude, edges, given, self.reverse_eids, self.reverse_etypes)
        return edges, pairs, nodes, exclude

    def _negatives(
        self, g: GraphLike, edges: object, ends: dict[EdgeType, Pairs], key: BatchKey
    ) -> dict[EdgeType, Pairs] | None:
        """Return negative pairs by canonical edge type; ``edges`` are the seed edges as passed."""
        if self.negative_sampler is None:
            return None
        if draws_by_key(self.negative_sampler):
            return self.negative_sampler.draw(g, ends, key)
        drawn = self.negative_sampler(g, edges)
        pairs = by_type(drawn, g.canonical_etypes, "edge", "negatives", "(sources, destinations)")
        return {t: pairs_of(g, t, pair) for t, pair in pairs.items()}


def sampler_of_nodes(sampler: BlockSampler) -> BlockSampler:
    """Return the sampler itself, or the one beneath a sampler of edges."""
    return sampler.sampler if isinstance(sampler, EdgePredictionSampler) else sampler


def _copied(exclude: object) -> object:
    """Copy edges to exclude: DGL's samplers sort them in place."""
    if isinstance(exclude, Mapping):
        return {t: _copied(ids) for t, ids in exclude.items()}
    return exclude.clone() if isinstance(exclude, Tensor) else exclude


def as_seed_nodes(nodes: dict[NodeType, Tensor]) -> Nodes:
    """Return nodes as a sampler accepts them: the tensor of the only type, or all by type."""
    return next(iter(nodes.values())) if len(nodes) == 1 else nodes


def as_tensors(
    g: GraphLike,
    edges: Mapping[EdgeType, Tensor],
    pairs: Sequence[heterograph_index.HeteroGraphIndex],
    sample: BlockTensors,
    device: torch.device,
) -> EdgeTensors:
    """Return seed edges and pairs on a device, with the sample around them."""
    ends = []
    for index in pairs:
        by_type = (index.edges(i, "eid") for i in range(len(g.canonical_etypes)))
        both = [(src.to(device), dst.to(device)) for src, dst, _ in by_type]
        ends.append(dict(zip(g.canonical_etypes, both, strict=True)))
    none = torch.empty(0, dtype=g.idtype)
    return EdgeTensors(
        sample=sample,
        ends=ends[0],
        ids={t: edges.get(t, none).to(device) for t in g.canonical_etypes},
        negative_ends=ends[1] if len(ends) > 1 else None,
    )


def with_pairs(batch: EdgeTensors, blocks: list[DGLBlock], frames: TypeFrames | None) -> tuple[object, ...]:
    """Return seed edges and negatives of a complete batch in DGL's objects, with its blocks."""
    sample = batch.sample
    nodes = {t: sample.node[t][:n] for t, n in sample.num_seeds.items()}
    num_nodes = list(sample.num_seeds.values())
    given = [batch.ends] if batch.negative_ends is None else [batch.ends, batch.negative_ends]
    indices = [index_of_pairs(list(nodes), list(batch.ids), num_nodes, pairs) for pairs in given]
    graphs = graphs_of_pairs(nodes, batch.ids, indices, frames, sample.masks, (batch.masks, batch.negative_masks))
    put_rows(graphs[0]._edge_frames, list(batch.ends), batch.edge_features)
    return sample.input_nodes, *graphs, blocks


def as_edge_prediction_sampler(
    sampler: BlockSampler,
    exclude: object = None,
    reverse_eids: object = None,
    reverse_etypes: Mapping[EdgeName, EdgeName] | None = None,
    negative_sampler: NegativeSampler = None,
    prefetch_labels: Names = None,
    *,
    seed: int | None = None,
) -> EdgePredictionSampler:
    """Turn a sampler of seed nodes into one of seed edges: DGL's ``as_edge_prediction_sampler``.

    A batch, its negatives too, is a function of its key. The graph of the seed edges has them in the given order, with
    their ids in ``edata[dgl.EID]``.

    Args:
        sampler: a sampler of nodes, of this package or any of DGL's interface ``sample(g, nodes, exclude_eids)``.
        exclude: edges that the blocks must not have: ``None``; ``"self"``: the seed edges; ``"reverse_id"``: and their
            reverses, by ``reverse_eids``; ``"reverse_types"``: and the edges of the same ids of the reverse types, by
            ``reverse_etypes``; a callable, seed edges (by canonical edge type, if there are multiple) -> edges, which
            decides, regardless of ``reverse_eids`` and ``reverse_etypes``; or the edges themselves.
        reverse_eids: ``[num_edges]`` edge id -> id of its reverse, or a dict of these by edge type.
        reverse_etypes: edge type -> the type of its reverses.
        negative_sampler: ``negative_sampler(g, seed_edges)`` -> sources and destinations (by edge type, where there are
            multiple). DGL's own ``PerSourceUniform`` and ``GlobalUniform`` are replaced by this package's samplers.
        prefetch_labels: names of edge data for the graph of the seed edges, by edge type if there are multiple.
        seed: of the negatives, if ``sampler`` is not one of this package, which has its own seed.

    Raises:
        InputError: arguments that do not make sense.
        TypeError: ``sampler.sample`` has no argument for edges to exclude.
    """
    return EdgePredictionSampler(
        sampler, exclude, reverse_eids, reverse_etypes, negative_sampler, prefetch_labels, seed=seed
    )
