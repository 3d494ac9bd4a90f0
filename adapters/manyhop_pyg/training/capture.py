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
from manyhop_pyg.typing import Attributes, Batch
from manyhop_train.aggregation import hops_of, is_sorted, mark_sorted
from manyhop_train.capture import CapturedStep

R = TypeVar("R")

_ATOMS: Final = frozenset({int, float, str, bool, type(None)})


def capture(
    step: Callable[[Batch], R], *, watch: Sequence[object] = (), verify: int | None = None
) -> CapturedStep[Batch, R]:
    """Capture a training step once per size of its batches as a CUDA graph, and replay it afterwards.

    ``step(batch)`` calculates the loss, its gradients and the optimizer's update; it may return tensors, of which the
    caller gets detached copies. Its Python code runs in the first three steps, in the first two of each size, and
    then no more: it must not wait for the GPU (``.item()``, a condition on a tensor, a shape from data), nor count in
    Python. Otherwise it runs eagerly, and a line of the log (``manyhop``) names the line of the step.

    A replay repeats recorded kernels. The batch, parameters, buffers, states of optimizers and learning rates of Adam,
    AdamW, RMSprop and fused SGD may change from step to step; another setting of an optimizer or a module, or of an
    object in ``watch``, captures the step again. Whatever else the step reads has to stay as it is, which is checked.

    Args:
        step: a function of a batch of a loader with ``pad="auto"``. Can be used as a decorator.
        watch: objects that the step reads and that may change, such as the arguments of a script: their attributes or
            entries are numbers, strings, tensors, or lists and dictionaries of these.
        verify: every how many replays the same step also runs eagerly from the same state, and results, gradients and
            parameters are compared. By default, these are the first two replays of each graph and as many later ones
            as take 1 % of the time; 0: none.

    Returns:
        What is called in its place. Its attributes ``eager``, ``replayed`` and ``graphs`` count steps and graphs.

    Raises:
        InputError: ``step`` is no function of one argument, or ``watch`` or ``verify`` are wrong; or, when the first
            batch comes, that batch is not padded.
        StaleStepError: by the step, after a replay that computed something else than the eager step.
    """
    return CapturedStep(step, _BatchLayout(), watch=watch, verify=verify)


class _BatchLayout:
    """The ``Layout`` of ``Data`` and ``HeteroData``."""

    def check(self, batch: Batch) -> None:
        """Raise InputError where a batch is not padded."""
        if not any("edge_mask" in mapping for _, mapping in _mappings(batch)):
            raise InputError(
                "Expected a batch of fixed size, got one that is not padded. Make the loader with pad='auto'."
            )
        for key, mapping in _mappings(batch):
            for name, value in mapping.items():
                if isinstance(value, SparseTensor) or (isinstance(value, Tensor) and value.layout != torch.strided):
                    kind = "" if key is None else f" of {key!r}"
                    raise InputError(
                        f"Expected edges as edge_index, got a sparse tensor '{name}'{kind}. Leave the transform out."
                    )

    def contents(self, batch: Batch) -> tuple[list[Tensor], Hashable]:
        """Return the tensors of all stores; and the names of attributes, with the values of those that are none."""
        if not isinstance(batch, Data | HeteroData):
            raise InputError(f"Expected a batch of a loader with pad='auto', got a {type(batch).__name__}.")
        tensors: list[Tensor] = []
        others: list[Hashable] = []
        for key, mapping in _mappings(batch):
            others += (key, len(mapping))
            others += mapping  # the names of all, then those of what are no tensors once more: no work for each tensor
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
    """The attributes of each store, and its type."""
    if type(batch) is Data:
        return [(None, batch._store._mapping)]
    return [(store._key, store._mapping) for store in batch.stores]


def _frozen(value: object) -> Hashable:
    """A value that equals another where a step cannot tell them apart."""
    if type(value) in _ATOMS:
        return value
    if type(value) is list and _ATOMS.issuperset(map(type, value)):  # such as counts per hop, in a tenth of the time
        return tuple(value)
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in value.items())
    return value if isinstance(value, Hashable) else id(value)
