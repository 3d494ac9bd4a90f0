"""The batch of given seeds, as for serving, in fewer steps of the host: what does not change is looked up once.

For ``Data`` that a GPU samples and joins, by a sampler of ours without times and trees, and without functions of the
user in between. Batches are the same as those that are made in the usual way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.typing import TensorFrame

from manyhop.aggregation import Hops, mark_sorted
from manyhop.features import RowRequest
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from manyhop.sampling import BatchKey
from manyhop.sampling.gpu.sampler import GPUSampler
from manyhop_pyg.batch.plan import DataPlan
from manyhop_pyg.loaders.columns import DataColumns
from manyhop_pyg.samplers.neighbor import NeighborSampler, has_own_sample
from manyhop_pyg.typing import PyGData

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime


class SingleBatches:
    """Makes batches around seed nodes. Safe to call from several threads.

    Args:
        gpu: of the loader.
        placed: its data.
        sampler: its sampler.
        engine: samples for it.
    """

    def __init__(self, gpu: GPURuntime, placed: DataPlan, sampler: NeighborSampler, engine: GPUSampler) -> None:
        self._gpu, self._placed, self._sampler, self._engine = gpu, placed, sampler, engine
        self._spec, self._numbers = sampler.spec, gpu.sampling.numbers
        self._backward = sampler.topology.backward
        self._store = store = placed.edges[HOMOGENEOUS_EDGE]
        nodes, edges = (sampler.topology.bounds.get(kind) for kind in (HOMOGENEOUS_NODE, HOMOGENEOUS_EDGE))
        self._of_nodes = [(key, value, dim, nodes) for key, value, dim in store.of_nodes]
        self._of_edges = [(key, value, dim, edges) for key, value, dim in store.of_edges]
        self._removed = [name for name in ("batch", "seed_time") if name in store.template]

    @classmethod
    def of(cls, gpu: GPURuntime, data: PyGData, sampler: BaseSampler) -> SingleBatches | None:
        """Return those of a loader's data and sampler; ``None``: batches have to be made in the usual way."""
        if gpu.sampling is None or gpu.collective or gpu.memory.exchanges or not isinstance(data, Data):
            return None
        if type(sampler) is not NeighborSampler or has_own_sample(sampler):
            return None
        topology, spec, engine = sampler.topology, sampler.spec, gpu.sampling.engine(sampler)
        if topology.is_temporal or topology.index_dtype != torch.int64 or spec.disjoint:
            return None
        if sampler.subgraph_type != SubgraphType.directional or not isinstance(engine, GPUSampler):
            return None
        placed = gpu.columns(DataColumns(data))
        store = placed.edges[HOMOGENEOUS_EDGE]
        if placed.embeddings or placed.edge_index_types or [key for key, _ in store.edges] != ["edge_index"]:
            return None
        if any(isinstance(column.value, TensorFrame) for column in (*store.of_nodes, *store.of_edges)):
            return None
        return cls(gpu, placed, sampler, engine)

    def fits(self, data: PyGData, sampler: BaseSampler) -> bool:
        """Return whether a loader's data and sampler are as they were. Asked for each batch."""
        return (
            sampler is self._sampler
            and self._sampler.spec is self._spec
            and isinstance(data, Data)
            and self._gpu.columns(DataColumns(data)) is self._placed
        )

    def make(self, seeds: Tensor, key: BatchKey) -> Data:
        """Return the batch, before transforms.

        Args:
            seeds: ``[n] int64``, on the CPU or on the GPU.
            key: of the batch.

        Raises:
            InputError: a seed is not a node of the graph.
        """
        pending = self._engine.begin_seeds(HOMOGENEOUS_NODE, seeds, key)
        batch: Data = self._placed.begin()  # while the GPU samples
        into, size = batch._store._mapping, seeds.shape[0]
        input_id = self._numbers.take(size)
        (sample,) = pending.finish()
        node, e_id = sample.node[HOMOGENEOUS_NODE], sample.edge_id[HOMOGENEOUS_EDGE]
        assert e_id is not None
        requests = [RowRequest(value, node, dim, name, bound) for name, value, dim, bound in self._of_nodes]
        requests += [RowRequest(value, e_id, dim, name, bound) for name, value, dim, bound in self._of_edges]
        for request, rows in zip(requests, self._gpu.gather(requests), strict=True):
            into[request.name] = rows
        row, count = sample.row[HOMOGENEOUS_EDGE], e_id.shape[0]
        if self._backward:
            edge_index = torch.stack((sample.col[HOMOGENEOUS_EDGE], row))
        else:  # the sampler stores columns behind rows
            edge_index = row.as_strided((2, count), (count, 1))
        into["edge_index"] = edge_index
        if self._store.num_nodes:
            into["num_nodes"] = node.shape[0]
        into.setdefault("n_id", node)
        into.setdefault("e_id", e_id)
        assert sample.num_sampled_nodes is not None
        assert sample.num_sampled_edges is not None
        added, edges = sample.num_sampled_nodes[HOMOGENEOUS_NODE], sample.num_sampled_edges[HOMOGENEOUS_EDGE]
        into["num_sampled_nodes"], into["num_sampled_edges"] = added, edges
        into["input_id"], into["batch_size"] = input_id, size
        for name in self._removed:
            del into[name]
        if not self._backward:
            mark_sorted(edge_index, Hops(added, added, edges))
        return batch
