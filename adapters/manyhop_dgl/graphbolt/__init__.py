"""GraphBolt's interface over manyhop's engine: ``import manyhop_dgl.graphbolt as gb`` in place of ``dgl.graphbolt``.

Nothing of ``dgl.graphbolt`` is imported: it needs a library that is built for few versions of torch. DGL itself is
needed for ``MiniBatch.blocks`` and ``from_dglgraph`` only.
"""

from manyhop_dgl.graphbolt._base import functional_datapipe, seed
from manyhop_dgl.graphbolt._functional import (
    add_reverse_edges,
    add_reverse_edges_2,
    compact_csc_format,
    exclude_seed_edges,
    expand_indptr,
    index_select,
    isin,
    unique_and_compact,
    unique_and_compact_csc_formats,
)
from manyhop_dgl.graphbolt._loader import DataLoader
from manyhop_dgl.graphbolt._minibatch import MiniBatch
from manyhop_dgl.graphbolt._sampled_subgraph import (
    CSCFormatBase,
    FusedSampledSubgraphImpl,
    SampledSubgraph,
    SampledSubgraphImpl,
)
from manyhop_dgl.graphbolt._stages import CopyTo, MiniBatchTransformer, SeedEdgesExcluder
from manyhop_dgl.graphbolt._stages_features import FeatureFetcher
from manyhop_dgl.graphbolt._stages_negative import NegativeSampler, UniformNegativeSampler
from manyhop_dgl.graphbolt._stages_sampling import (
    InSubgraphSampler,
    LayerNeighborSampler,
    NeighborSampler,
    SubgraphSampler,
    TemporalNeighborSampler,
)

__all__ = [
    "CSCFormatBase",
    "CopyTo",
    "DataLoader",
    "FeatureFetcher",
    "FusedSampledSubgraphImpl",
    "InSubgraphSampler",
    "LayerNeighborSampler",
    "MiniBatch",
    "MiniBatchTransformer",
    "NegativeSampler",
    "NeighborSampler",
    "SampledSubgraph",
    "SampledSubgraphImpl",
    "SeedEdgesExcluder",
    "SubgraphSampler",
    "TemporalNeighborSampler",
    "UniformNegativeSampler",
    "add_reverse_edges",
    "add_reverse_edges_2",
    "compact_csc_format",
    "exclude_seed_edges",
    "expand_indptr",
    "functional_datapipe",
    "index_select",
    "isin",
    "seed",
    "unique_and_compact",
    "unique_and_compact_csc_formats",
]
