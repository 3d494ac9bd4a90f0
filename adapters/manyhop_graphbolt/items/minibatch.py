"""The minibatch that travels through the stages, each of which adds its part."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.sampling import BatchKey
from manyhop_graphbolt.graph.subgraph import SampledSubgraph, columns_of_edges
from manyhop_graphbolt.items.blocks import make_blocks
from manyhop_graphbolt.pipes import Movable, show
from manyhop_graphbolt.types import GONE, Features, GBWarning, Nodes, missing

if TYPE_CHECKING:
    from dgl.heterograph import DGLBlock
    from torch_geometric.data import Data

    from manyhop.loading.pipeline import Padded


_FIELDS = (
    "labels",
    "seeds",
    "indexes",
    "sampled_subgraphs",
    "input_nodes",
    "node_features",
    "edge_features",
    "compacted_seeds",
)


class MiniBatch(Movable):
    """The data of one minibatch, as in DGL 2.4.

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
        """Of the seeds; set by negative samplers (1 for positive pairs, else 0)."""
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
        return self.seeds if _are_nodes(self.seeds) else None

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

    @property
    def node_pairs_with_labels(self) -> tuple[Any, Nodes] | None:
        """``((src, dst), labels)`` of pairs that have labels, as positions: to compute a loss with (DGL 2.1).

        By edge type where the seeds are. ``None`` where there are no pairs, or no labels.
        """
        seeds, labels = self.compacted_seeds, self.labels
        parts = seeds.values() if isinstance(seeds, dict) else (seeds,)
        if labels is None or any(ends is None or ends.dim() != 2 for ends in parts):
            return None
        if isinstance(seeds, dict):
            return {name: (ends[:, 0], ends[:, 1]) for name, ends in seeds.items()}, labels
        assert seeds is not None
        return (seeds[:, 0], seeds[:, 1]), labels

    def moving(self) -> tuple[str, ...]:
        """Return the names of what ``to`` moves: everything."""
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
        shown = {name: getattr(self, name) for name in _FIELDS}
        further = {
            name: value for name, value in vars(self).items() if name not in (*_FIELDS, "key") and name[0] != "_"
        }
        return show("MiniBatch", {**shown, **further})


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
        names: one per element of an item, ``None`` for those to leave out; DGL 2.1's ``seed_nodes`` and ``node_pairs``
            become ``seeds``. Instead of a tuple, ``None``: the batch is returned as it is, with a warning.

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
