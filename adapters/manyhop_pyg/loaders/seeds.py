"""The seeds of a loader of PyG's kind: the inputs of batches by position, and samples around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.sampler import BaseSampler, NodeSamplerInput

from manyhop.errors import InputError
from manyhop.graph import Graph
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey
from manyhop.sampling.engines import Engine
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.loaders.inputs import input_of
from manyhop_pyg.loaders.view import LoaderView
from manyhop_pyg.samplers.typed_edges import TypedEdgeInput
from manyhop_pyg.samplers.typed_seeds import TypedNodeInput
from manyhop_pyg.typing import Inputs, Positions, Sample

if TYPE_CHECKING:
    from manyhop_pyg.loaders.gpu_inputs import GPUInputs
    from manyhop_pyg.samplers.on_gpu import Finish, GPUSampling


class Seeds:
    """The ``SeedSource`` of a loader."""

    def __init__(self, loader: LoaderView) -> None:
        self._loader = loader

    @property
    def graph(self) -> Graph | None:
        """The topology of a sampler of ours that nobody has changed."""
        from manyhop_pyg.samplers.on_gpu import samples_on_gpu

        sampler, method = self._loader.seed_sampler()
        return sampler.topology.graph if samples_on_gpu(sampler, method) else None

    @property
    def of_nodes(self) -> bool:
        """Whether seeds are nodes."""
        return isinstance(self._loader.input_data, NodeSamplerInput)

    def inputs(self, positions: Sequence[Positions]) -> list[Inputs]:
        """Return the inputs of several batches, looked up at once."""
        return inputs_of(self._loader, positions)

    def place(self, device: torch.device, where: Place) -> GPUSampling:
        """Return what the sampler does on a GPU, shared by all loaders that use the sampler."""
        from manyhop_pyg.samplers.on_gpu import GPUSampling

        return GPUSampling.of(self._loader.seed_sampler()[0], device, where)

    def engine(self, sampling: GPUSampling) -> Engine:
        """Return what the sampler samples with, as of now."""
        return sampling.engine(self._loader.seed_sampler()[0])

    def lookup(self, device: torch.device) -> GPUInputs | None:
        """Return the inputs on the GPU; ``None`` where they are too many, or needed on the host."""
        if self._loader.reads_inputs_on_host:
            return None
        from manyhop_pyg.loaders.gpu_inputs import inputs_on

        return inputs_on(device, self._loader.input_data, self._loader.seed_sampler()[0])

    def begin(self, sampling: GPUSampling, inputs: Sequence[Inputs], keys: Sequence[BatchKey]) -> Finish:
        """Begin to sample around the inputs of several batches."""
        return self._loader.begin_on_gpu(sampling, inputs, keys)

    def sample(self, positions: Positions) -> Sample:
        """Sample around the inputs at some positions."""
        out = self._loader.sample_inputs(self._loader.inputs_at(positions))
        transform = self._loader.transform_sampler_output
        return out if transform is None else transform(out)


def inputs_of(loader: LoaderView, indices: Sequence[Positions]) -> list[Inputs]:
    """The inputs of several batches, looked up at once."""
    tensors = [index for index in indices if isinstance(index, Tensor) and index.dtype == torch.int64]
    if (
        len(indices) == 1
        or len(tensors) < len(indices)
        or isinstance(loader.input_data, TypedNodeInput | TypedEdgeInput)
    ):
        return [loader.inputs_at(index) for index in indices]
    index, given = torch.cat(tensors), loader.input_data
    together = columns_of_nodes(given, index) if type(given) is NodeSamplerInput else vars(loader.inputs_at(index))
    sizes = [index.numel() for index in tensors]
    columns = {k: v.split_with_sizes(sizes) for k, v in together.items() if isinstance(v, Tensor)}
    return [
        input_of(type(given), together | {name: parts[i] for name, parts in columns.items()})
        for i in range(len(indices))
    ]


def nodes_of_seeds(given: Inputs, sampler: BaseSampler) -> list[tuple[Tensor, int]]:
    """Return for each type of seeds the node of each seed, of a seed edge its source, and the number of such nodes.

    Raises:
        InputError: a sampler of the user's own, whose graph is not known.
    """
    topology = getattr(sampler, "topology", None)
    if not isinstance(topology, Topology):
        raise InputError(
            f"Expected one of manyhop's samplers with seed_parts, got a {type(sampler).__name__}. Leave seed_parts out."
        )
    of_nodes = isinstance(given, NodeSamplerInput)
    types = given.input_type if hasattr(given, "sizes") else (given.input_type,)
    sizes = getattr(given, "sizes", [len(given.node if of_nodes else given.row)])
    names = [of if of_nodes or of is None else of[0] for of in types]
    nodes = (given.node if of_nodes else given.row).split(sizes)
    return [(ids, topology.graph.num_nodes[topology.node_type(of)]) for ids, of in zip(nodes, names, strict=True)]


def columns_of_nodes(given: NodeSamplerInput, index: Tensor) -> dict[str, object]:
    """What ``given[index]`` consists of; PyG's way of indexing takes four times as long.

    Raises:
        IndexError: a position out of range.
    """
    id_, node, time = (
        None if column is None else column.index_select(0, index) for column in (given.input_id, given.node, given.time)
    )
    return {"input_id": index if id_ is None else id_, "node": node, "time": time, "input_type": given.input_type}
