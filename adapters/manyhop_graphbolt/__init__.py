"""GraphBolt's interface over manyhop's engine: ``import manyhop_dgl.graphbolt as gb`` instead of ``dgl.graphbolt``.

Nothing of ``dgl.graphbolt`` is imported: it needs a library that is built for few versions of torch. DGL itself is
needed for ``MiniBatch.blocks`` and ``from_dglgraph`` only.
"""

from manyhop_dgl.samplers.arguments import seed
from manyhop_graphbolt.datasets.dataset import BuiltinDataset, Dataset, OnDiskDataset, OnDiskTask, Task
from manyhop_graphbolt.datasets.preprocess import preprocess_ondisk_dataset
from manyhop_graphbolt.features.cached import CPUCachedFeature, GPUCachedFeature, cpu_cached_feature, gpu_cached_feature
from manyhop_graphbolt.features.disk import DiskBasedFeature, OnDiskFeatureData, TorchBasedFeatureStore
from manyhop_graphbolt.features.feature import BasicFeatureStore, Feature, FeatureStore, TorchBasedFeature
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph, SamplingGraph, from_dglgraph, fused_csc_sampling_graph
from manyhop_graphbolt.graph.layers import (
    add_reverse_edges,
    compact_csc_format,
    unique_and_compact,
    unique_and_compact_csc_formats,
)
from manyhop_graphbolt.items.minibatch import MiniBatch, minibatcher_default
from manyhop_graphbolt.items.sampler import DistributedItemSampler, HeteroItemSet, ItemSampler, ItemSet, ItemSetDict
from manyhop_graphbolt.loader.loader import DataLoader
from manyhop_graphbolt.stages.links import (
    NegativeSampler,
    SeedEdgesExcluder,
    UniformNegativeSampler,
    exclude_seed_edges,
)
from manyhop_graphbolt.stages.sampling import (
    LayerNeighborSampler,
    NeighborSampler,
    SubgraphSampler,
    TemporalNeighborSampler,
)
from manyhop_graphbolt.stages.stage import CopyTo, FeatureFetcher, MiniBatchTransformer
from manyhop_graphbolt.types import (
    CANONICAL_ETYPE_DELIMITER,
    ORIGINAL_EDGE_ID,
    CSCFormatBase,
    GBWarning,
    SampledSubgraph,
    SampledSubgraphImpl,
    etype_str_to_tuple,
    etype_tuple_to_str,
    missing,
)

__all__ = [
    "CANONICAL_ETYPE_DELIMITER",
    "ORIGINAL_EDGE_ID",
    "BasicFeatureStore",
    "BuiltinDataset",
    "CPUCachedFeature",
    "CSCFormatBase",
    "CopyTo",
    "DataLoader",
    "Dataset",
    "DiskBasedFeature",
    "DistributedItemSampler",
    "Feature",
    "FeatureFetcher",
    "FeatureStore",
    "FusedCSCSamplingGraph",
    "GBWarning",
    "GPUCachedFeature",
    "HeteroItemSet",
    "ItemSampler",
    "ItemSet",
    "ItemSetDict",
    "LayerNeighborSampler",
    "MiniBatch",
    "MiniBatchTransformer",
    "NegativeSampler",
    "NeighborSampler",
    "OnDiskDataset",
    "OnDiskFeatureData",
    "OnDiskTask",
    "SampledSubgraph",
    "SampledSubgraphImpl",
    "SamplingGraph",
    "SeedEdgesExcluder",
    "SubgraphSampler",
    "Task",
    "TemporalNeighborSampler",
    "TorchBasedFeature",
    "TorchBasedFeatureStore",
    "UniformNegativeSampler",
    "add_reverse_edges",
    "compact_csc_format",
    "cpu_cached_feature",
    "etype_str_to_tuple",
    "etype_tuple_to_str",
    "exclude_seed_edges",
    "from_dglgraph",
    "fused_csc_sampling_graph",
    "gpu_cached_feature",
    "minibatcher_default",
    "preprocess_ondisk_dataset",
    "seed",
    "unique_and_compact",
    "unique_and_compact_csc_formats",
]


def __getattr__(name: str) -> object:
    raise missing(__name__, name)
