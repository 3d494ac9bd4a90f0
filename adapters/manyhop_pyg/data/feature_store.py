"""A PyG ``FeatureStore`` whose rows are gathered by the engine: all tensors of a batch in one call."""

from __future__ import annotations

import copy
import dataclasses
import threading
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data import TensorAttr

from manyhop.arguments import as_tensor
from manyhop.errors import FeatureError, InputError
from manyhop.features import (
    BufferPool,
    CacheSize,
    DistributedRows,
    RowRequest,
    ShardedRows,
    cache_files,
    check_cache,
    gather,
)
from manyhop.files import Rows
from manyhop.graph import EdgeType, NodeType
from manyhop.loading import current_exchange
from manyhop.memory.places import Place
from manyhop.memory.stores import StoreExchange, as_it_is, rows_in, store_device
from manyhop_pyg.data.graph_store import ExactAttr, is_edge_type, is_whole, kind_of, num_rows_of, row_index, title_of

Key = tuple[object, ...]
Group: TypeAlias = NodeType | EdgeType | None
"""Node or edge type of a tensor; ``None`` in homogeneous graphs."""


class StoreColumn(NamedTuple):
    """A tensor of a store."""

    group: Group
    name: str
    tensor: Any
    title: str
    """Name for errors."""


class UnknownTensorError(FeatureError, KeyError):
    """The store has no such tensor. Also a ``KeyError``, as in PyG's stores."""

    __str__ = Exception.__str__  # KeyError would quote the message


class FeatureStore(torch_geometric.data.FeatureStore):  # type: ignore[misc]  # PyG is untyped
    """Store node and edge features, by group and name, in the memory selected by ``placement``.

    ``group_name`` is ``None`` in homogeneous graphs, otherwise a node type or an edge type ``(src, rel, dst)``. A
    tensor of a homogeneous graph with one row per edge belongs to edges (if there are as many nodes: if its name
    contains "edge"). Row ``i`` belongs to node ``i``, or to the edge with id ``i`` (see :class:`GraphStore`).

    Tensors are stored without a copy: any torch dtype and device, numpy arrays, memory maps, sparse tensors,
    TensorFrames. An ``index`` is ``None`` (the tensor itself), a slice (a view), an integer (one row), or a tensor or
    array ``[count]`` of row numbers or ``[num_rows] bool`` (a new tensor).

    **Placement.** All loaders of the process read the tensors without copying them.

    =============== ==================== ================================================================
    ``placement=``  ``device=``          memory
    =============== ==================== ================================================================
    ``process``                          memory of this process
    ``shared``                           host memory, once per machine
    ``mapped``                           files: ``manyhop.files.Rows`` or ``numpy.memmap``
    ``pinned``      (``"cuda"``)         page-locked host memory, once per machine; GPUs read it
    ``device``      (``"cuda"``)         a copy on each GPU
    ``sharded``                          host memory, a part on each machine
    ``sharded``     ``"cuda"``           a part on each GPU of a machine (WholeGraph); GPUs read each other's
    ``distributed`` (``"cuda"``)         a part on each GPU of all machines (WholeGraph); ranks exchange rows
    ``auto``                             as ``shared``; the first loader decides what GPUs read
    =============== ==================== ================================================================

    ``manyhop.files.open(...)`` can replace a tensor: each rank reads only the rows that it will hold. ``WholeMemory``,
    ``ShardedRows``, ``DistributedRows`` and DLPack objects are stored unchanged.

    **Multiple ranks.** With ``placement="shared"``, each machine holds all rows once, in memory that its ranks share.
    With ``"sharded"``, machine ``m`` of ``M`` holds rows ``N * m // M`` to ``N * (m + 1) // M``; with
    ``device="cuda"``, each rank's GPU holds such a part. Except for ``"process"`` and ``"mapped"``, all ranks put the
    same tensors in the same order. Either each rank puts the whole tensor (only the rows of its machine are copied), or
    each puts a part, ``put_tensor(part, group_name=..., attr_name=..., index=slice(begin, end))``; together the parts
    have each row once. A rank without rows puts ``torch.empty(0)`` with ``slice(0, 0)``, regardless of shape and dtype.
    This works for dense tensors and arrays (in CPU memory for host memory), which can only be replaced as a whole.

    If a tensor is sharded over machines or distributed over GPUs, all ranks call ``get_tensor`` and
    ``multi_get_tensor`` together, each with its own index (possibly empty); ``multi_get_tensor`` uses one exchange. A
    loader over such a store needs ``distributed=True``. It gets remote rows in one exchange per batch, while other
    threads of the loader sample (``num_workers`` of at least 2). Rows sharded over the GPUs of a machine need no
    exchange.

    Args:
        tensor_attr_cls: subclass of PyG's ``TensorAttr`` with another order of fields, or additional ones; ``None``:
            ``TensorAttr``.
        placement: memory of the tensors; see above.
        device: this rank's GPU, for placements of GPUs. ``None``: host memory, or the current GPU if only GPUs have the
            placement.
        cache: size of a cache of remote rows in host memory: a float from 0 to 1, the share of the rows of each tensor;
            an integer, bytes for all tensors; or ``"auto"`` with ``"mapped"``, half of the available memory divided by
            the ranks of the machine. ``loader.stats()`` shows the hit rate. Rows sharded over host memory (default:
            0.05): each machine caches the remote rows that the first batches of the first epoch use most, found by
            sampling them when the first loader is created. Loaders on GPUs cache as much on each GPU; without
            ``cache``, as its memory allows. ``"mapped"`` (default: 0): each process caches rows of at least 64 bytes,
            selected in the same way at the start of the first epoch, and again as requests change.
        rank_timeout: seconds to wait for other ranks (600).

    Raises:
        InputError: arguments that do not make sense.
    """

    def __init__(
        self,
        tensor_attr_cls: type[TensorAttr] | None = None,
        *,
        placement: Place = "process",
        device: torch.device | str | None = None,
        cache: CacheSize | None = None,
        rank_timeout: float | None = None,
    ) -> None:
        gpu = store_device(placement, device, rank_timeout)
        mapped = placement == "mapped"
        if cache is not None and not mapped and (placement != "sharded" or gpu is not None):
            raise InputError(
                f"Expected cache only with placement='mapped', or 'sharded' over host memory, got {cache!r}: the other "
                "rows are all here. Leave it out."
            )
        if cache is not None:
            check_cache(cache)
        if cache == "auto" and not mapped:
            raise InputError("Expected cache='auto' only with placement='mapped', got it with 'sharded'. Pass a share.")
        super().__init__(tensor_attr_cls or ExactAttr)
        self.placement = placement
        self._place = rows_in(placement, gpu, rank_timeout)
        self._exchange = StoreExchange(self._place)
        self.cache = 0.05 if cache is None or cache == "auto" else cache
        self._cache_of_files: CacheSize = cache or 0 if mapped else 0
        self._cache_is_given = cache is not None
        self._is_cache_filled = False
        self._tensors: dict[Key, Any] = {}
        self.known_columns: list[StoreColumn] | None = None
        """What :meth:`columns` returned; ``None`` after each change."""
        self._attrs: dict[Key, TensorAttr] = {}
        self._pool = BufferPool()

    def update_tensor(self, tensor: object, *args: object, **kwargs: object) -> bool:
        """Replace a tensor or, if the attribute has an index, some of its rows (in place).

        Raises:
            FeatureError: the rows do not fit.
        """
        return bool(self.put_tensor(tensor, *args, **kwargs))

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the attributes of all tensors: new objects, with ``index`` unset, in the order of insertion."""
        return [copy.copy(attr) for attr in self._attrs.values()]

    def _put_tensor(self, tensor: object, attr: TensorAttr) -> bool:
        self.known_columns = None
        key = self._key(attr)
        name = title_of(attr)
        there = as_it_is(tensor) if is_whole(attr.index) else None
        if there is None and isinstance(tensor, Rows):
            there = self._read(tensor, name)
        if there is not None:
            self._keep(key, there, attr)
            return True
        if num_rows_of(tensor) is None:
            raise FeatureError(
                f"Expected {name} to be a tensor, an array or a TensorFrame with one row per node or edge, got "
                f"{kind_of(tensor)}. Convert it."
            )
        if self._place is not None:
            self._keep(key, self._place.put(tensor, attr.index, name), attr)
            return True
        if is_whole(attr.index):
            if self.placement == "mapped" and not isinstance(tensor, np.memmap):
                raise FeatureError(
                    f"Expected {name} in files, manyhop.files.open(...) or a numpy.memmap, got {kind_of(tensor)}. "
                    "Write it with manyhop.files.write, or use another placement."
                )
            self._keep(key, tensor, attr)
            return True
        whole = self._tensors.get(key)
        if whole is None:
            raise UnknownTensorError(
                f"Expected all rows of {name}, as the store does not hold it yet, got an index. Pass the whole tensor "
                "first (index=None), then some of its rows."
            )
        if not isinstance(whole, Tensor | np.ndarray):
            raise FeatureError(f"Rows of {name} cannot be replaced, since it is {kind_of(whole)}. Pass all rows.")
        index = row_index(attr.index, len(whole), name)
        rows, old = as_tensor(f"rows of {name}", tensor, FeatureError), whole[index]
        wanted = as_tensor(f"rows of {name}", old, FeatureError)
        if rows.shape != wanted.shape:
            raise FeatureError(f"Expected rows of {name} of shape {list(wanted.shape)}, got {list(rows.shape)}.")
        if not torch.can_cast(rows.dtype, wanted.dtype):
            raise FeatureError(f"Expected rows of {name} as {wanted.dtype}, got {rows.dtype}. Convert them.")
        rows = rows.to(wanted)
        whole[index] = rows if isinstance(whole, Tensor) else rows.numpy()  # type: ignore[assignment]
        return True

    def _get_tensor(self, attr: TensorAttr) -> Any:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: list[TensorAttr]) -> list[object]:
        self.columns()  # which may set up caches of rows
        results: list[object] = []
        requests: dict[int, RowRequest] = {}
        single: list[int] = []
        for i, attr in enumerate(attrs):
            tensor, name = self._find(attr), title_of(attr)
            spread = isinstance(tensor, ShardedRows | DistributedRows)
            if is_whole(attr.index) and not spread:
                results.append(tensor)
                continue
            index = row_index(slice(None) if attr.index is None else attr.index, num_rows_of(tensor), name)
            if spread and isinstance(index, slice):
                index = torch.arange(len(tensor))[index]
            elif spread and isinstance(index, int):
                single.append(i)
                index = torch.tensor([index])
            if isinstance(index, Tensor):
                requests[i] = RowRequest(tensor, index, name=name)
                results.append(None)
            else:
                results.append(tensor[index])
        # Loaders call this in their own threads, whose number the user sets.
        threads = torch.get_num_threads() if threading.current_thread() is threading.main_thread() else 1
        exchange = current_exchange() or self._exchange
        rows = gather(requests.values(), pool=self._pool, threads=threads, exchange=exchange)
        for i, result in zip(requests, rows, strict=True):
            results[i] = result[0] if i in single else result
        return results

    def named_tensors(self) -> list[tuple[str, object]]:
        """Return all tensors, with their names for errors."""
        return [(column.title, column.tensor) for column in self.columns()]

    def columns(self) -> list[StoreColumn]:
        """Return all tensors in the order of insertion."""
        if self.known_columns is None:
            self.known_columns = [
                StoreColumn(attr.group_name, attr.attr_name, self._tensors[key], title_of(attr))
                for key, attr in self._attrs.items()
            ]
            if self._cache_of_files:
                cache_files([column.tensor for column in self.known_columns], self._cache_of_files)
        return self.known_columns

    def hold(self, tensor: Tensor | Rows, *, group_name: Group, attr_name: str) -> None:
        """Store a tensor unchanged, or rows of files sharded over machines; all ranks call it."""
        attr = self._tensor_attr_cls(group_name, attr_name)
        key = self._key(attr)
        self._keep(key, self._read(tensor, title_of(attr)) if isinstance(tensor, Rows) else tensor, attr)

    def moved(self, placement: Place, device: torch.device | str | None) -> FeatureStore:
        """Return a store with dense tensors of two or more dimensions in another placement; all ranks call it."""
        out = FeatureStore(self._tensor_attr_cls, placement=placement, device=device)
        assert out._place is not None
        for key, attr in self._attrs.items():
            tensor = self._tensors[key]
            moves = type(tensor) is Tensor and tensor.layout is torch.strided and tensor.dim() > 1
            out._keep(key, out._place.put(tensor, None, title_of(attr)) if moves else tensor, attr)
        return out

    def _read(self, rows: Rows, name: str) -> object:
        """Return the rows of files in the store's placement; all ranks call it if they share them."""
        if self._place is not None:
            return self._place.read(rows, name)
        return rows.mapped() if self.placement == "mapped" else rows.read()

    def _keep(self, key: Key, value: object, attr: TensorAttr) -> None:
        self._tensors[key], self._attrs[key] = value, copy.copy(attr)
        self._attrs[key].index = TensorAttr.index  # unset
        self.known_columns = None

    @property
    def sharded_rows(self) -> list[ShardedRows]:
        """The tensors that are sharded over the host memory of machines."""
        return [tensor for tensor in self._tensors.values() if isinstance(tensor, ShardedRows)]

    @property
    def distributed_rows(self) -> list[DistributedRows]:
        """The tensors that are spread over the GPUs of all ranks."""
        return [tensor for tensor in self._tensors.values() if isinstance(tensor, DistributedRows)]

    @property
    def kept_rows(self) -> dict[str, int] | None:
        """Number of remote rows that a GPU caches, by name of the tensor; ``None``: as its memory allows."""
        spread = {title: tensor for title, tensor in self.named_tensors() if isinstance(tensor, ShardedRows)}
        if not self._cache_is_given or not spread:
            return None
        total = sum(len(rows) * rows.row_bytes for rows in spread.values())
        share = self.cache if isinstance(self.cache, float) else min(1.0, self.cache / max(1, total))
        return {title: int(share * len(rows)) for title, rows in spread.items()}

    def cache_to_fill(self) -> bool:
        """Return True to the first caller only, which must fill the cache."""
        filled, self._is_cache_filled = self._is_cache_filled, True
        return not filled and self.cache > 0

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        key = self._key(attr)
        self.known_columns = None
        self._attrs.pop(key, None)
        return self._tensors.pop(key, None) is not None

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        tensor = self._tensors.get(self._key(attr))
        if tensor is None:
            return None
        if not is_whole(attr.index) and isinstance(tensor, ShardedRows | DistributedRows):
            index = row_index(attr.index, len(tensor), title_of(attr))
            return tuple(torch.empty(len(tensor), 0)[index].shape[:-1]) + tensor.shape[1:]
        if not is_whole(attr.index):
            tensor = self._get_tensor(attr)
        return (
            tuple(tensor.shape)
            if isinstance(tensor, Tensor | np.ndarray | ShardedRows | DistributedRows)
            else (len(tensor),)
        )

    def _find(self, attr: TensorAttr) -> Any:
        tensor = self._tensors.get(self._key(attr))
        if tensor is None:
            known = ", ".join(title_of(a) for a in self.get_all_tensor_attrs()) or "nothing"
            raise UnknownTensorError(f"The store does not hold {title_of(attr)}. It holds: {known}.")
        return tensor

    def _key(self, attr: TensorAttr) -> Key:
        group, name = attr.group_name, attr.attr_name
        known = group is None or isinstance(group, str) or is_edge_type(group)
        if not known or not isinstance(name, str) or isinstance(attr.index, str):
            raise FeatureError(
                "Expected the group of a tensor as None, a node type or an edge type ('src', 'rel', 'dst'), and its "
                f"name as a string, got group_name={group!r}, attr_name={name!r}, index={attr.index!r}. Name them: "
                "get_tensor(group_name=('user', 'rates', 'movie'), attr_name='time', index=None)."
            )
        return tuple(getattr(attr, field.name) for field in dataclasses.fields(attr) if field.name != "index")

    def __copy__(self) -> FeatureStore:
        """Return a separate store with the same tensors."""
        out = type(self).__new__(type(self))
        out.__dict__.update(self.__dict__)
        out.known_columns = None
        out._tensors, out._attrs, out._pool = dict(self._tensors), dict(self._attrs), copy.copy(self._pool)
        return out
