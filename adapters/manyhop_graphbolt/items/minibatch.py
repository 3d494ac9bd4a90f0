"""The minibatch that the stages complete; its layers as DGL's blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.errors import InputError, MissingExtraError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from manyhop.sampling import BatchKey
from manyhop_graphbolt.types import (
    GONE,
    CSCFormatBase,
    Features,
    GBWarning,
    Movable,
    Nodes,
    SampledSubgraph,
    as_given,
    by_type,
    columns_of_edges,
    etype_str_to_tuple,
    missing,
    show,
)

if TYPE_CHECKING:
    from dgl.heterograph import DGLBlock
    from torch_geometric.data import Data

    from manyhop.loading.pipeline import Padded


_LARGEST = torch.iinfo(torch.int32).max


def _block(subgraph: SampledSubgraph, *, with_nodes: bool) -> DGLBlock:
    """Build the block of one layer; ``with_nodes``: with the ids of its source nodes."""
    import dgl

    from manyhop_dgl.samplers import blocks

    def of_nodes(value: object) -> dict[str, Tensor]:
        return {t or HOMOGENEOUS_NODE: one for t, one in by_type(value).items()}

    rows, columns = of_nodes(subgraph.original_row_node_ids), of_nodes(subgraph.original_column_node_ids)
    csc, row_masks = by_type(subgraph.sampled_csc), of_nodes(subgraph.row_mask)
    ids, edge_masks = by_type(subgraph.original_edge_ids), by_type(subgraph.edge_mask)
    if not rows or not columns:
        raise InputError(
            "Expected layers with original_row_node_ids and original_column_node_ids to make blocks of, got one "
            "without. Compact it first (unique_and_compact_csc_formats)."
        )
    node_types, edge_types = sorted({*rows, *columns}), sorted(csc, key=str)  # as in DGL
    none = next(iter(rows.values()))[:0]
    sources, targets = [[nodes.get(t, none) for t in node_types] for nodes in (rows, columns)]
    num_src, num_dst = [{t: n.shape[0] for t, n in zip(node_types, some, strict=True)} for some in (sources, targets)]
    canonical = tuple([HOMOGENEOUS_EDGE if t is None else etype_str_to_tuple(t) for t in edge_types])
    relation = blocks.relation_maker(none.device)

    def structure() -> tuple[list[Any], list[int]]:
        ends = zip(edge_types, canonical, strict=True)
        relations = [relation(num_src[src], num_dst[dst], *_narrow(csc[name])) for name, (src, _, dst) in ends]
        return relations, [*num_src.values(), *num_dst.values()]

    def node_frames() -> list[Any]:
        nodes = [blocks.make_frame(some.shape[0], {}) for some in sources]
        nodes = blocks.frames_of_ids(dgl.NID, sources) if with_nodes else nodes
        nodes += [blocks.make_frame(some.shape[0], {}) for some in targets]
        for frame, t in zip(nodes, 2 * node_types, strict=True) if row_masks else ():
            frame._columns["node_mask"] = blocks.make_column(row_masks[t][: frame.num_rows])
        return nodes

    def edge_frames() -> list[Any]:
        edges = []
        for name in edge_types:
            empty = [blocks.make_frame(csc[name].indices.shape[0], {})]
            edges += empty if ids.get(name) is None else blocks.frames_of_ids(dgl.EID, [ids[name]])
            if edge_masks:
                edges[-1]._columns["edge_mask"] = blocks.make_column(edge_masks[name])
        return edges

    schema = blocks.block_schema(tuple(node_types), canonical)
    if relation is blocks.index_of_dgl:
        return schema.block(structure(), node_frames(), edge_frames())
    return schema.lazy_block(structure, node_frames, edge_frames)


def _narrow(csc: CSCFormatBase) -> tuple[Tensor, Tensor]:
    """Return columns and rows, as int32 if the numbers fit."""
    enough = max(csc.indptr.numel() - 2, csc.indices.numel()) <= _LARGEST
    dtype = torch.int32 if enough else torch.int64
    return csc.indptr.to(dtype), csc.indices.to(dtype)


class MiniBatch(Movable):
    """The data of one minibatch, as in DGL 2.4.

    Missing values are ``None``. Values of heterogeneous graphs are dictionaries, by node type or by edge type
    (``"src:rel:dst"``); features of those are by ``(type, feature name)``. Further attributes may be set.
    """

    key: BatchKey | None = None
    """Names the minibatch: its sample is a function of the key. ``None``: it was created by hand."""

    seed_mask: Nodes | None = None
    """``[num_seeds] bool``: which seeds are real, of a loader with ``pad="auto"``; ``None`` without padding."""

    node_mask: Nodes | None = None
    """``[num_nodes] bool``: which input nodes are real; ``None`` without padding."""

    padding: Padded | None = None
    """The padding, while stages run; ``None`` without padding, and in complete minibatches."""

    def __init__(
        self,
        labels: Nodes | None = None,
        seeds: Nodes | None = None,
        indexes: Nodes | None = None,
        sampled_subgraphs: Sequence[SampledSubgraph] | None = None,
        input_nodes: Nodes | None = None,
        node_features: Features | None = None,
        edge_features: list[Features] | None = None,
        compacted_seeds: Nodes | None = None,
        *,
        seed_nodes: Nodes | None = None,
    ) -> None:
        self.labels = labels
        """Labels of the seeds; negative samplers set them (1 for positive pairs, 0 for others)."""
        self.seeds = seeds if seed_nodes is None else seed_nodes
        """``[num_seeds]``: seed nodes, or ``[num_seeds, 2]``: pairs of nodes that seed edges connect."""
        self.indexes = indexes
        """``[num_pairs]``: the positive pair that each pair of ``seeds`` belongs to."""
        self.sampled_subgraphs = sampled_subgraphs
        """One per layer, the input layer first."""
        self.input_nodes = input_nodes
        """``[num_nodes]``: nodes of the graph whose features the input layer reads."""
        self.node_features = node_features
        """Feature name -> ``[num_nodes, ...]``, of the input nodes."""
        self.edge_features = edge_features
        """Per layer: feature name -> ``[num_edges, ...]``."""
        self.compacted_seeds = compacted_seeds
        """``seeds`` as positions in the columns of the last layer."""

    @property
    def seed_nodes(self) -> Nodes | None:
        """``seeds``, if they are nodes (DGL 2.1)."""
        are_nodes = all(isinstance(part, Tensor) and part.dim() == 1 for part in by_type(self.seeds).values())
        return self.seeds if are_nodes else None

    @seed_nodes.setter
    def seed_nodes(self, value: Nodes | None) -> None:
        self.seeds = value

    def __getattr__(self, name: str) -> Any:
        raise missing("MiniBatch", name)

    # Layers

    def num_layers(self) -> int:
        """Return the number of sampled layers."""
        return 0 if self.sampled_subgraphs is None else len(self.sampled_subgraphs)

    def node_ids(self) -> Nodes | None:
        """Return the input nodes."""
        return self.input_nodes

    def edge_ids(self, layer_id: int) -> Nodes | None:
        """Return the ids of a layer's edges in the graph; ``None`` if the graph has no edge ids."""
        assert self.sampled_subgraphs is not None
        return self.sampled_subgraphs[layer_id].original_edge_ids

    @property
    def blocks(self) -> list[DGLBlock] | None:
        """The layers as DGL's blocks, made on each access; ``None`` without sampled layers.

        The first has the ids of its source nodes as ``dgl.NID``, all have known edge ids as ``dgl.EID``.

        Raises:
            MissingExtraError: DGL is not installed; or it is for CPUs only, and the minibatch is on a GPU.
        """
        if not self.sampled_subgraphs:
            return None
        try:
            import dgl  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name != "dgl":
                raise
            raise MissingExtraError("dgl", "dgl", "MiniBatch.blocks") from None
        return [_block(layer, with_nodes=i == 0) for i, layer in enumerate(self.sampled_subgraphs)]

    @property
    def node_pairs_with_labels(self) -> tuple[Any, Nodes] | None:
        """``((src, dst), labels)`` of pairs that have labels, as positions: to compute a loss with (DGL 2.1).

        By edge type if the seeds are. ``None`` without pairs or labels.
        """
        seeds = by_type(self.compacted_seeds)
        if self.labels is None or not seeds or any(ends is None or ends.dim() != 2 for ends in seeds.values()):
            return None
        return as_given({name: (ends[:, 0], ends[:, 1]) for name, ends in seeds.items()}), self.labels

    def moving(self) -> tuple[str, ...]:
        """Return the names of the attributes that ``to`` moves: all."""
        return tuple(name for name in vars(self) if name != "key")

    def to_pyg_data(self) -> Data:
        """Return the minibatch as PyG's ``Data``.

        It has the edges of all layers, each once, the input nodes as ``n_id``, and the number of seeds as
        ``batch_size``.

        Raises:
            InputError: a heterogeneous minibatch, or one with multiple features.
        """
        from torch_geometric.data import Data

        features = self.node_features or {}
        hetero = isinstance(self.input_nodes, dict) or isinstance(self.labels, dict)
        if hetero or len(features) > 1:
            raise InputError(
                "Expected a homogeneous minibatch with at most one node feature to make PyG's Data of, got "
                + ("a heterogeneous one." if hetero else f"the features {list(features)}. Fetch one of them.")
            )
        edge_index = None
        if self.sampled_subgraphs is not None:
            csc = [subgraph.sampled_csc for subgraph in self.sampled_subgraphs]
            edges = [torch.stack((part.indices, columns_of_edges(part))) for part in csc]
            edge_index = torch.unique(torch.cat(edges, dim=1), dim=1).long()
        seeds = next(iter(by_type(self.seeds).values()), None)
        return Data(
            x=next(iter(features.values()), None),
            edge_index=edge_index,
            y=self.labels,
            batch_size=None if seeds is None else len(seeds),
            n_id=self.input_nodes,
        )

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if name != "key" and name[0] != "_"}
        return show("MiniBatch", shown)


def num_seeds(item: object) -> int:
    """Return how many seed nodes, or seed edges, a minibatch has; 0 for other items."""
    parts = by_type(item.seeds).values() if isinstance(item, MiniBatch) else ()
    return sum([part.size(0) for part in parts if isinstance(part, Tensor) and part.dim() > 0])


def contents_of(item: object) -> dict[str, int]:
    """Return nodes, edges and bytes of features of a minibatch; nothing for other items."""
    if not isinstance(item, MiniBatch):
        return {}
    found = {"gathered_bytes": feature_bytes(item)}
    if (padded := item.padding) is not None:
        nodes, edges = (sum(map(sum, some.values())) for some in (padded.counts.nodes, padded.counts.edges))
        return found | {"nodes": nodes, "edges": edges, "padded": 1, "fit": int(padded.grown == 0)}
    layers = [getattr(layer, "sampled_csc", None) for layer in item.sampled_subgraphs or ()]  # or a user's own kind
    edges = sum([csc.indices.numel() for layer in layers for csc in by_type(layer).values()])
    return found | {"nodes": sum([ids.numel() for ids in by_type(item.input_nodes).values()]), "edges": edges}


def feature_bytes(item: object) -> int:
    """Return the bytes of the features of a minibatch; 0 for other items."""
    features = (item.node_features, *(item.edge_features or ())) if isinstance(item, MiniBatch) else ()
    return sum([getattr(rows, "nbytes", 0) for some in features for rows in by_type(some).values()])


Minibatcher = Callable[[Any, tuple[str | None, ...] | None], Any]


def minibatcher_default(batch: Any, names: tuple[str | None, ...] | None) -> Any:
    """Make a :class:`MiniBatch` of the items of a batch, as attributes of their names.

    Args:
        batch: the items of multiple indices: a tensor, a tuple, or a dictionary of these by type.
        names: one per element of an item, ``None`` to leave it out; DGL 2.1's ``seed_nodes`` and ``node_pairs``
            become ``seeds``. Instead of a tuple, ``None``: the batch is returned unchanged, with a warning.

    Raises:
        InputError: negatives under a name of DGL 2.1.
    """
    if names is None:
        warnings.warn(
            "Failed to map item list to `MiniBatch` as the names of items are not provided. Please provide a "
            "customized `MiniBatcher`. The item list is returned as is.",
            GBWarning,
            stacklevel=2,
        )
        return batch
    minibatch: object = MiniBatch()
    for i, name in enumerate(names):
        if name is None:
            continue
        if len(names) == 1:
            item = batch
        elif isinstance(batch, Mapping):
            item = {key: value[i] for key, value in batch.items()}
        else:
            item = batch[i]
        if name in ("seed_nodes", "node_pairs"):
            name = "seeds"
        if name in GONE:
            raise InputError(str(missing("MiniBatch", name)))
        if not hasattr(minibatch, name) and name != "timestamp":  # which temporal samplers read
            warnings.warn(
                f"Unknown item name '{name}' is detected and added into `MiniBatch`. You probably need to provide a "
                "customized `MiniBatcher`.",
                GBWarning,
                stacklevel=2,
            )
        setattr(minibatch, name, item)
    return minibatch
