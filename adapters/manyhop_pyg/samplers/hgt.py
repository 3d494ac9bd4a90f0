"""PyG's sampler interface over the engine, for samples with a similar number of nodes of each type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeAlias

from torch_geometric.data import FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput, NegativeSampling, NodeSamplerInput

from manyhop.arguments import as_ids, flags
from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.loading import next_key
from manyhop.sampling import BatchKey, HGTSpec, NodeRequest, SampledSubgraph
from manyhop_pyg.data.convert import build_topology, claim_place, read_data
from manyhop_pyg.samplers.neighbor import EngineSampler, share_topology, to_sampler_output
from manyhop_pyg.samplers.requests import host_engine, node_metadata, seeds_of
from manyhop_pyg.samplers.spec import integers

HeteroInput: TypeAlias = HeteroData | tuple[FeatureStore, GraphStore]

NO_TIMES = "HGT sampling has no times: leave input_time out, or use NeighborLoader."


class HGTSampler(EngineSampler):
    """Sample a similar number of nodes of each type (arXiv 2003.01332): PyG's ``HGTSampler``, without torch-sparse.

    Args:
        data: ``HeteroData``, or stores with types.
        num_samples: number of nodes to add per hop, for each node type or for all.
        is_sorted: whether edges are sorted by destination; this is checked.
        share_memory: move the topology to shared memory, for spawned worker processes.
        max_neighbors: most neighbours of a node per edge type, 1 to 1024 (50, PyG's constant). Of more neighbours, a
            uniform sample is used for the candidates, and another one for the edges of the batch. ``None``: no limit
            (on CPUs).

    Raises:
        InputError: homogeneous data, or numbers that do not fit it.
        GraphError: a topology that is wrong.
    """

    def __init__(
        self,
        data: HeteroInput,
        num_samples: list[int] | dict[NodeType, list[int]],
        is_sorted: bool = False,
        share_memory: bool = False,
        *,
        max_neighbors: int | None = 50,
    ) -> None:
        flags(is_sorted=is_sorted, share_memory=share_memory)
        raw = read_data(data)
        if not raw.hetero:
            raise InputError(
                f"Expected data with node and edge types for {type(self).__name__}, got {type(data).__name__}. "
                "NeighborSampler samples homogeneous graphs."
            )
        self.topology = build_topology(raw, time_attr=None, weight_attr=None, is_sorted=is_sorted, backward=False)
        claim_place(data, self.topology)
        if not isinstance(num_samples, Mapping):
            num_samples = {node_type: num_samples for node_type in raw.num_nodes}
        samples = {k: integers("num_samples, of each hop,", v) for k, v in num_samples.items()}
        self.num_samples = num_samples
        self.num_hops = max(map(len, samples.values()), default=0)
        self.max_neighbors = max_neighbors
        self.spec = HGTSpec(num_samples=samples, max_neighbors=max_neighbors)
        if share_memory:
            share_topology(self.topology)
        self.gpu_samplings = {}
        self._rebuild()

    def _rebuild(self) -> None:
        self.engine = host_engine(self.topology.graph, self.spec)

    @property
    def node_types(self) -> list[NodeType]:
        """Node types of the graph."""
        return list(self.topology.graph.node_types)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Edge types of the graph."""
        return list(self.topology.graph.edge_types)

    def sample_from_nodes(self, index: NodeSamplerInput) -> HeteroSamplerOutput:
        """Sample around seed nodes; ``metadata`` of the result is ``(input_id, None)``."""
        out = self.node_output(self.engine.sample(self.node_request(index, next_key())))
        out.metadata = node_metadata(index, index.input_id, None)
        return out

    def node_request(self, index: NodeSamplerInput, key: BatchKey) -> NodeRequest:
        """Return the engine's request for seed nodes.

        Raises:
            InputError: seeds with times, or of a type that the graph does not have.
        """
        if index.time is not None:
            raise InputError(NO_TIMES)
        seeds, _ = seeds_of(index)
        return NodeRequest(
            key=key, seeds={self.topology.node_type(t): as_ids("seed nodes", ids).long() for t, ids in seeds.items()}
        )

    def node_output(self, sample: SampledSubgraph) -> HeteroSamplerOutput:
        """Convert the engine's sample to PyG's."""
        out = to_sampler_output(sample, self.topology)
        out.num_sampled_nodes = None  # as in PyG: edges are those among all nodes, so hops cannot be trimmed
        return out

    def sample_from_edges(self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None) -> NoReturn:
        """Raise InputError: HGT sampling starts from nodes."""
        raise InputError("HGT sampling starts from nodes, not from edges: use LinkNeighborLoader for links.")
