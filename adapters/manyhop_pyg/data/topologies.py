"""One topology for all samplers of the process that are made over the same data: once on the host, once on each GPU."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from manyhop.graph import EdgeType

T = TypeVar("T")
TensorTree: TypeAlias = "Tensor | Mapping[str, TensorTree] | Mapping[EdgeType, TensorTree]"
"""Tensors in nested mappings."""
Path: TypeAlias = tuple[Hashable, ...]

_known: dict[Hashable, tuple[weakref.ref[Any], list[StorageWeakRef]]] = {}
_lock = threading.Lock()


def once(inputs: TensorTree, options: Hashable, build: Callable[[], T]) -> T:
    """What ``build()`` returns, or what it returned before for the same tensors, if that is still in use.

    Tensors are the same that are the same view of the same memory, and have not been changed in place since, by
    operations of torch.

    Args:
        inputs: the tensors that it is built from, in nested dictionaries. They are not kept alive.
        options: what else it depends on.
        build: makes an object that can be referred to weakly.
    """
    tensors = dict(_tensors(inputs, ()))
    if any(tensor.is_inference() for tensor in tensors.values()):  # whose changes nobody counts
        return build()
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors.values()]  # type: ignore[no-untyped-call]
    views = [(name, storage.cdata, *_view(t)) for (name, t), storage in zip(tensors.items(), storages, strict=True)]
    key = (options, *views)
    with _lock:
        found = _known.get(key)
        value = None if found is None else found[0]()
    if value is not None:
        same: T = value
        return same
    value = build()
    with _lock:
        for old in [k for k, (ref, _) in _known.items() if ref() is None]:
            del _known[old]
        # A storage that is referred to, even weakly, keeps its number to itself.
        _known[key] = weakref.ref(value), storages
    return value


def _tensors(value: TensorTree, path: Path) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    for key, part in value.items():
        yield from _tensors(part, (*path, key))


def _view(tensor: Tensor) -> tuple[Hashable, ...]:
    """Where a tensor lies in its memory, as what, and in which version."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor._version
