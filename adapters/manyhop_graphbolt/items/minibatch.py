"""The minibatch that travels through the stages, each of which adds its part."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.sampling import BatchKey
from manyhop_graphbolt.graph.subgraph import SampledSubgraph, columns_of_edges
from manyhop_graphbolt.items.blocks import make_blocks
from manyhop_graphbolt.pipes import Movable, show
from manyhop_graphbolt.types import Features, GBWarning, Links, Nodes, Pairs

if TYPE_CHECKING:
    from dgl.heterograph import DGLBlock
    from torch_geometric.data import Data

    from manyhop.loading.pipeline import Padded


LabelledPairs: TypeAlias = tuple[Links, Nodes]
"""Pairs, and a label of each."""


def negative_pairs(pairs: Any, srcs: Any, dsts: Any) -> Any:
    """``(src, dst)``, each ``[num_pairs, negative_ratio]``; the end that was not drawn is that of the positive pair.

    Args:
        pairs: positive pairs ``(src, dst)``, each ``[num_pairs]``; by edge type or not.
        srcs: drawn sources ``[num_pairs, negative_ratio]``, or ``None``.
        dsts: drawn destinations, or ``None``.
    """
    drawn = srcs if srcs is not None else dsts
    if drawn is None or (pairs is None and (srcs is None or dsts is None)):
        return None
    if isinstance(drawn, dict):
        return {
            name: negative_pairs(pairs and pairs[name], srcs and srcs.get(name), dsts and dsts.get(name))
            for name in drawn
        }
    ends = []
    for i, end in enumerate((srcs, dsts)):
        ends.append(end if end is not None else pairs[i].repeat_interleave(drawn.shape[1]).view(drawn.shape))
    return tuple(ends)


def pairs_with_labels(positive: Links | None, negative: Links | None, labels: Nodes | None) -> LabelledPairs | None:
    """Pairs and labels to compute a loss with; ``None`` where there are none."""
    if labels is not None:
        return None if positive is None else (positive, labels)
    if positive is None or negative is None:
        return None
    if not isinstance(positive, dict) or not isinstance(negative, dict):
        assert not isinstance(positive, dict)
        assert not isinstance(negative, dict)
        pairs, marks = _labelled(positive, negative)
        return pairs, marks.float()
    both = {name: _labelled(positive[name], negative[name]) for name in positive}
    return {name: pairs for name, (pairs, _) in both.items()}, {name: marks for name, (_, marks) in both.items()}


def pairs_of_seeds(seeds: Nodes | None, labels: Nodes | None, *, negatives: bool) -> LabelledPairs | None:
    """Pairs and labels of ``seeds`` ``[num_pairs, 2]``, by type where they have types; ``None`` where there are none.

    Args:
        seeds: positions of both ends.
        labels: ``[num_pairs]``, or by type.
        negatives: whether labels tell positive pairs from negative ones; they are float32 then, where there are no
            types, as DGL's are.
    """
    parts = list(seeds.values()) if isinstance(seeds, dict) else [seeds]
    if labels is None or any(ends is None or ends.dim() != 2 for ends in parts):
        return None
    if isinstance(seeds, dict):
        return {name: (ends[:, 0], ends[:, 1]) for name, ends in seeds.items()}, labels
    assert seeds is not None
    assert not isinstance(labels, dict)
    return (seeds[:, 0], seeds[:, 1]), labels.float() if negatives else labels


def _labelled(positive: Pairs, negative: Pairs) -> tuple[Pairs, Tensor]:
    """Positive pairs, then negative ones, and ``[num_pos + num_neg]`` ones and zeros."""
    src, dst = (torch.cat((yes, no.reshape(-1))) for yes, no in zip(positive, negative, strict=True))
    marks = torch.zeros_like(src)
    marks[: positive[0].numel()] = 1
    return (src, dst), marks


_FIELDS = (
    "seed_nodes",
    "node_pairs",
    "labels",
    "seeds",
    "indexes",
    "negative_srcs",
    "negative_dsts",
    "sampled_subgraphs",
    "input_nodes",
    "node_features",
    "edge_features",
    "compacted_node_pairs",
    "compacted_seeds",
    "compacted_negative_srcs",
    "compacted_negative_dsts",
)
_RESULTS = ("labels", "sampled_subgraphs", "node_features", "edge_features", "seed_mask", "node_mask")
_LINKS = ("compacted_node_pairs", "compacted_negative_srcs", "compacted_negative_dsts")


class MiniBatch(Movable):
    """The data of one minibatch, as in DGL 2.1, with the names of later versions beside those.

    What is not there is ``None``. Values of heterogeneous graphs are dictionaries, by node type or by edge type
    (``"src:rel:dst"``); features of those are by ``(type, feature name)``. Further attributes may be set.
    """

    _seed_nodes: Nodes
    _seeds_timestamp: Nodes | None
    key: BatchKey | None = None
    """Names the minibatch: what is sampled for it is a function of this. ``None``: it was made by hand."""

    seed_mask: Nodes | None = None
    """``[num_seeds] bool``: which seeds are no padding, of a loader with ``pad="auto"``; ``None`` without padding."""

    node_mask: Nodes | None = None
    """``[num_nodes] bool``: which input nodes are no padding; ``None`` without."""

    padding: Padded | None = None
    """What is padding, while stages run; ``None`` without, and in minibatches that are complete."""

    def __init__(
        self,
        seed_nodes: Nodes | None = None,
        node_pairs: Links | None = None,
        labels: Nodes | None = None,
        seeds: Nodes | None = None,
        indexes: Nodes | None = None,
        negative_srcs: Nodes | None = None,
        negative_dsts: Nodes | None = None,
        sampled_subgraphs: Sequence[SampledSubgraph] | None = None,
        input_nodes: Nodes | None = None,
        node_features: Features | None = None,
        edge_features: list[Features] | None = None,
        compacted_node_pairs: Links | None = None,
        compacted_seeds: Nodes | None = None,
        compacted_negative_srcs: Nodes | None = None,
        compacted_negative_dsts: Nodes | None = None,
    ) -> None:
        self.seed_nodes = seed_nodes
        self.node_pairs = node_pairs
        """``(src, dst)``, each ``[num_pairs]``: nodes of the graph that seed edges connect (DGL 2.1)."""
        self.labels = labels
        """Of the seeds; set by negative samplers where ``seeds`` are pairs (1 for positive ones, else 0)."""
        self.seeds = seeds
        self.indexes = indexes
        """``[num_pairs]``: the positive pair that each pair of ``seeds`` belongs to."""
        self.negative_srcs = negative_srcs
        """``[num_pairs, negative_ratio]``: drawn sources (DGL 2.1)."""
        self.negative_dsts = negative_dsts
        """``[num_pairs, negative_ratio]``: drawn destinations (DGL 2.1)."""
        self.sampled_subgraphs = sampled_subgraphs
        """One per layer, the input layer first."""
        self.input_nodes = input_nodes
        """``[num_nodes]``: nodes of the graph whose features the input layer reads."""
        self.node_features = node_features
        """Feature name -> ``[num_nodes, ...]``, of the input nodes."""
        self.edge_features = edge_features
        """Per layer: feature name -> ``[num_edges, ...]``."""
        self.compacted_node_pairs = compacted_node_pairs
        """``node_pairs`` as positions in the columns of the last layer."""
        self.compacted_seeds = compacted_seeds
        """``seeds`` as positions in the columns of the last layer."""
        self.compacted_negative_srcs = compacted_negative_srcs
        """``negative_srcs`` as positions in the columns of the last layer."""
        self.compacted_negative_dsts = compacted_negative_dsts
        """``negative_dsts`` as positions in the columns of the last layer."""

    # Two names of the same

    @property
    def seed_nodes(self) -> Nodes | None:
        """``[num_seeds]``: seed nodes (DGL 2.1); those of ``seeds`` where these are nodes."""
        return self._own_seeds if self._own_seed_nodes is None and _are_nodes(self._own_seeds) else self._own_seed_nodes

    @seed_nodes.setter
    def seed_nodes(self, value: Nodes | None) -> None:
        self._own_seed_nodes = value

    @property
    def seeds(self) -> Nodes | None:
        """``[num_seeds]``: seed nodes, or ``[num_seeds, 2]``: pairs of nodes that seed edges connect; ``seed_nodes`` if
        only these are set."""
        return self._own_seed_nodes if self._own_seeds is None else self._own_seeds

    @seeds.setter
    def seeds(self, value: Nodes | None) -> None:
        self._own_seeds = value

    def is_of_seed_nodes(self) -> bool:
        """Whether ``seed_nodes`` was set, not ``seeds``: such nodes are taken as they are, repetitions included."""
        return self._own_seed_nodes is not None

    # Layers

    def num_layers(self) -> int:
        """Return the number of sampled layers."""
        return 0 if self.sampled_subgraphs is None else len(self.sampled_subgraphs)

    def node_ids(self) -> Nodes | None:
        """Return the input nodes."""
        return self.input_nodes

    def edge_ids(self, layer_id: int) -> Nodes | None:
        """The edges of the graph that a layer's edges are; ``None`` where the graph does not keep their ids."""
        assert self.sampled_subgraphs is not None
        return self.sampled_subgraphs[layer_id].original_edge_ids

    def set_node_features(self, node_features: Features) -> None:
        """Set the features of the input nodes."""
        self.node_features = node_features

    def set_edge_features(self, edge_features: list[Features]) -> None:
        """Set the features of the edges, a dictionary per layer."""
        self.edge_features = edge_features

    @property
    def blocks(self) -> list[DGLBlock] | None:
        """The layers as DGL's blocks, made on each access; ``None`` without sampled layers.

        Raises:
            MissingExtraError: DGL is not installed; or it is for CPUs only, and the minibatch is on a GPU.
        """
        return make_blocks(self.sampled_subgraphs) if self.sampled_subgraphs else None

    # Links

    @property
    def positive_node_pairs(self) -> Links | None:
        """``compacted_node_pairs``."""
        return self.compacted_node_pairs

    @property
    def negative_node_pairs(self) -> Links | None:
        """``(src, dst)``, each ``[num_pairs, negative_ratio]``, as positions; ``None`` without negatives."""
        srcs, dsts = self.compacted_negative_srcs, self.compacted_negative_dsts
        pairs: Links | None = negative_pairs(self.compacted_node_pairs, srcs, dsts)
        return pairs

    @property
    def node_pairs_with_labels(self) -> LabelledPairs | None:
        """``(pairs, labels)`` to compute a loss with: positive and negative pairs, labelled 1 and 0; where the
        minibatch has labels, its pairs and those; ``None`` where there are no pairs.

        Pairs that were given as ``seeds`` come with their labels, too, which DGL 2.1 returns for ``node_pairs`` alone.
        """
        if self.compacted_node_pairs is None:
            return pairs_of_seeds(self.compacted_seeds, self.labels, negatives=self.indexes is not None)
        return pairs_with_labels(self.compacted_node_pairs, self.negative_node_pairs, self.labels)

    # Elsewhere

    def moving(self) -> tuple[str, ...]:
        """What ``to`` moves. As in DGL 2.1, of a minibatch with ``seed_nodes`` or with compacted ``node_pairs`` that is
        what a model reads (and ``seed_nodes`` where there are no labels); of others, such as those with ``seeds``, it
        is everything."""
        if self._own_seed_nodes is not None and self.compacted_node_pairs is None:
            return _RESULTS if self.labels is not None else (*_RESULTS, "seed_nodes")
        if self._own_seed_nodes is None and self.compacted_node_pairs is not None:
            return _RESULTS + _LINKS
        return tuple(name for name in vars(self) if name != "key")

    def to_pyg_data(self) -> Data:
        """Return the minibatch as PyG's ``Data``.

        It has the edges of all layers, each once, the input nodes as ``n_id``, and the number of seeds as
        ``batch_size``.

        Raises:
            InputError: a heterogeneous minibatch, or one with several features.
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
        seeds = next(iter(self.seeds.values())) if isinstance(self.seeds, dict) else self.seeds
        return Data(
            x=next(iter(features.values()), None),
            edge_index=edge_index,
            y=self.labels,
            batch_size=None if seeds is None else len(seeds),
            n_id=self.input_nodes,
        )

    def __repr__(self) -> str:
        shown: dict[str, object] = {
            name: getattr(self, name) for name in _FIELDS if name not in ("seeds", "seed_nodes")
        }
        further = {name: value for name, value in vars(self).items() if name not in _FIELDS and name[0] != "_"}
        further.pop("key", None)
        return show("MiniBatch", {"seed_nodes": self._own_seed_nodes, "seeds": self._own_seeds, **shown, **further})


def _are_nodes(seeds: object) -> bool:
    """Whether seeds are nodes, not pairs of them."""
    if isinstance(seeds, dict):
        return all(_are_nodes(part) for part in seeds.values())
    return isinstance(seeds, Tensor) and seeds.dim() == 1


Minibatcher = Callable[[Any, tuple[str | None, ...] | None], Any]


def minibatcher_default(batch: Any, names: tuple[str | None, ...] | None) -> Any:
    """Make a :class:`MiniBatch` of the items of a batch, as attributes of their names.

    Args:
        batch: what an item set gives for several indices: a tensor, a tuple, or a dictionary of those by type.
        names: one per element of an item, ``None`` for those to leave out; instead of a tuple, ``None``: the batch is
            returned as it is, with a warning.

    Raises:
        InputError: ``node_pairs`` that are not ``[n, 2]``.
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
        if not hasattr(minibatch, name) and name != "timestamp":  # which temporal samplers read
            warnings.warn(
                f"Unknown item name '{name}' is detected and added into `MiniBatch`. You probably need to provide a "
                "customized `MiniBatcher`.",
                GBWarning,
                stacklevel=2,
            )
        if name == "node_pairs":
            item = {key: _ends(value) for key, value in item.items()} if isinstance(item, Mapping) else _ends(item)
        setattr(minibatch, name, item)
    return minibatch


def _ends(pairs: object) -> Any:
    """``[n, 2]`` pairs -> sources and destinations."""
    if not isinstance(pairs, torch.Tensor):
        return pairs
    if pairs.dim() != 2 or pairs.size(1) != 2:
        raise InputError(f"Expected node_pairs of shape [n, 2], got {list(pairs.shape)}.")
    return pairs[:, 0], pairs[:, 1]
