"""``capture``: training steps on padded batches of PyG's classes as CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import SparseTensor

from manyhop.errors import InputError
from manyhop_pyg.batch.join import hops_of, is_sorted, mark_sorted
from manyhop_pyg.typing import Attributes, Batch
from manyhop_train.capture import CapturedStep

R = TypeVar("R")

_ATOMS: Final = frozenset({int, float, str, bool, type(None)})


def capture(
    step: Callable[[Batch], R], *, watch: Sequence[object] = (), verify: int | None = None
) -> CapturedStep[Batch, R]:
    """Capture a training step as a CUDA graph, once per batch size, and replay it.

    ``step(batch)`` computes the loss, its gradients and the optimizer's update; it may return tensors, which the caller
    gets as detached copies. Its Python code runs in the first three steps and the first two of each size only: it must
    not wait for the GPU (``.item()``, a condition on a tensor, a shape from data), nor count in Python. Otherwise all
    steps run eagerly, and a warning names the line of the step.

    A replay repeats recorded kernels. The batch, parameters, buffers, optimizer states and learning rates of Adam,
    AdamW, RMSprop and fused SGD may change between steps. Other changes of an optimizer, a module or an object in
    ``watch`` capture the step again. All other inputs of the step must not change, which is checked.

    Args:
        step: function of a batch of a loader with ``pad="auto"``. Can be used as a decorator.
        watch: objects that the step reads and that may change, such as the arguments of a script, with numbers,
            strings, tensors, or lists and dictionaries of these as attributes or entries.
        verify: number of replays after which a step also runs eagerly from the same state, to compare results,
            gradients and parameters. Default: the first two replays of each graph, and later ones in up to 1 % of the
            time. 0: never.

    Returns:
        The captured step. Its attributes ``eager``, ``replayed`` and ``graphs`` count steps and graphs.

    Raises:
        InputError: ``step`` is not a function of one argument, ``watch`` or ``verify`` are wrong, or (when called) the
            first batch is not padded.
        StaleStepError: (when called) a replay differs from the eager step.
    """
    return CapturedStep(step, _BatchLayout(), watch=watch, verify=verify)


class _BatchLayout:
    """The ``Layout`` of ``Data`` and ``HeteroData``."""

    def check(self, batch: Batch) -> None:
        """Raise InputError if a batch is not padded."""
        if not any("edge_mask" in mapping for _, mapping in _mappings(batch)):
            raise InputError(
                "Expected a batch of fixed size, got one that is not padded. Pass pad='auto' to the loader."
            )
        for key, mapping in _mappings(batch):
            for name, value in mapping.items():
                if isinstance(value, SparseTensor) or (isinstance(value, Tensor) and value.layout != torch.strided):
                    kind = "" if key is None else f" of {key!r}"
                    raise InputError(
                        f"Expected edges as edge_index, got a sparse tensor '{name}'{kind}. Leave the transform out."
                    )

    def contents(self, batch: Batch) -> tuple[list[Tensor], Hashable]:
        """Return the tensors of all stores, and names of attributes with the values of other attributes."""
        if not isinstance(batch, Data | HeteroData):
            raise InputError(f"Expected a batch of a loader with pad='auto', got a {type(batch).__name__}.")
        tensors: list[Tensor] = []
        others: list[Hashable] = []
        for key, mapping in _mappings(batch):
            others += (key, len(mapping))
            others += mapping  # all names, then those of other values again: no work per tensor
            for name, value in mapping.items():
                if isinstance(value, Tensor):
                    tensors.append(value.as_tensor() if isinstance(value, EdgeIndex) else value)
                    if name == "edge_index":
                        others.append(is_sorted(value))  # which layers need not find out
                else:
                    others.append((name, _frozen(value)))
        return tensors, tuple(others)

    def with_tensors(self, batch: Batch, tensors: Sequence[Tensor]) -> Batch:
        """Return a batch with other tensors, whose edges are sorted as its own."""
        other = copy.copy(batch)
        new = iter(tensors)
        for _, mapping in _mappings(other):
            for name, value in mapping.items():
                if not isinstance(value, Tensor):
                    continue
                tensor = next(new)
                if isinstance(value, EdgeIndex):
                    tensor = EdgeIndex(
                        tensor,
                        sparse_size=value.sparse_size(),
                        sort_order=value.sort_order,
                        is_undirected=value.is_undirected,
                    )
                mapping[name] = tensor
                if is_sorted(value):
                    mark_sorted(tensor, hops_of(value))
        return other


def _mappings(batch: Batch) -> list[tuple[object, Attributes]]:
    """Return the attributes of each store, and its type."""
    if type(batch) is Data:
        return [(None, batch._store._mapping)]
    return [(store._key, store._mapping) for store in batch.stores]


def _frozen(value: object) -> Hashable:
    """Return a hashable value that equals others if a step cannot distinguish them."""
    if type(value) in _ATOMS:
        return value
    if type(value) is list and _ATOMS.issuperset(map(type, value)):  # such as counts per hop, in a tenth of the time
        return tuple(value)
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in value.items())
    return value if isinstance(value, Hashable) else id(value)
