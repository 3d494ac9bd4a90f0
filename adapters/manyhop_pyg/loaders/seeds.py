"""The seeds of a loader of PyG's kind: the inputs of batches by position, and samples around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.sampler import NodeSamplerInput

from manyhop.graph import Graph
from manyhop.placement import GPUPlace
from manyhop.sampling import BatchKey
from manyhop_pyg.loaders.view import LoaderView

if TYPE_CHECKING:
    from manyhop_pyg.loaders.gpu_inputs import GPUInputs
    from manyhop_pyg.samplers.on_gpu import GPUSampling


class Seeds:
    """The ``SeedSource`` of a loader."""

    def __init__(self, loader: LoaderView) -> None:
        self._loader = loader

    @property
    def graph(self) -> Graph | None:
        """The topology of a sampler of ours that nobody has changed."""
        from manyhop_pyg.samplers.on_gpu import samples_on_gpu

        sampler, method = self._loader._sampler()
        return sampler.topology.graph if samples_on_gpu(sampler, method) else None

    @property
    def of_nodes(self) -> bool:
        """Whether seeds are nodes."""
        return type(self._loader.input_data) is NodeSamplerInput

    def inputs(self, positions: Sequence[Any]) -> list[Any]:
        """Return the inputs of several batches, looked up at once."""
        return inputs_of(self._loader, list(positions))

    def place(self, device: torch.device, where: GPUPlace) -> GPUSampling:
        """Return what the sampler does on a GPU, shared by all loaders that use the sampler."""
        from manyhop_pyg.samplers.on_gpu import GPUSampling

        return GPUSampling.of(self._loader._sampler()[0], device, where)

    def lookup(self, device: torch.device) -> GPUInputs | None:
        """Return the inputs on the GPU; ``None`` where they are too many, or needed on the host."""
        from manyhop_pyg.loaders.gpu_inputs import inputs_on

        return inputs_on(device, self._loader.input_data, self._loader._sampler()[0])

    def begin(self, sampling: GPUSampling, inputs: Sequence[Any], keys: Sequence[BatchKey]) -> Callable[[], list[Any]]:
        """Begin to sample around the inputs of several batches."""
        return self._loader._begin_on_gpu(sampling, inputs, keys)

    def sample(self, positions: Any) -> Any:
        """Sample around the inputs at some positions."""
        out = self._loader._sample(self._loader._inputs(positions))
        transform = self._loader.transform_sampler_output
        return out if transform is None else transform(out)


def inputs_of(loader: Any, indices: list[Any]) -> list[Any]:
    """The inputs of several batches, looked up at once."""
    tensors = all(isinstance(index, torch.Tensor) and index.dtype == torch.int64 for index in indices)
    if len(indices) == 1 or not tensors:
        return [loader._inputs(index) for index in indices]
    index, given = torch.cat(indices), loader.input_data
    together = columns_of_nodes(given, index) if type(given) is NodeSamplerInput else vars(loader._inputs(index))
    sizes = [index.numel() for index in indices]
    columns = {k: v.split_with_sizes(sizes) for k, v in together.items() if isinstance(v, torch.Tensor)}
    return [
        input_of(type(given), together | {name: parts[i] for name, parts in columns.items()})
        for i in range(len(indices))
    ]


def columns_of_nodes(given: NodeSamplerInput, index: torch.Tensor) -> dict[str, Any]:
    """What ``given[index]`` consists of; PyG's way of indexing takes four times as long.

    Raises:
        IndexError: a position out of range.
    """
    id_, node, time = (
        None if column is None else column.index_select(0, index) for column in (given.input_id, given.node, given.time)
    )
    return {"input_id": index if id_ is None else id_, "node": node, "time": time, "input_type": given.input_type}


def input_of(kind: type[Any], attributes: dict[str, Any]) -> Any:
    """One of PyG's inputs of samplers, as it is: its class would move each tensor to the CPU once more."""
    one = object.__new__(kind)
    one.__dict__.update(attributes)
    return one
