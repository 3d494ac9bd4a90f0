"""Memory over multiple GPUs, and graphs in it."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features.exchange.spread import check_parts, copy_overlap, overlap, send_rows
from manyhop.features.sources import DistributedRows
from manyhop.features.whole_memory.communicators import binding, communicator, require_contexts, require_room
from manyhop.features.whole_memory.partition import Division, Kind, read_rows
from manyhop.files import Rows
from manyhop.files import open as open_rows
from manyhop.files.rows import Paths
from manyhop.graph import Graph
from manyhop.ranks import control, world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.system.arrays import flat_bytes
from manyhop.system.progress import copy_rows


class WholeMemory:
    """A tensor ``[num_rows, ...]`` in WholeGraph's memory: every rank holds a part of its rows. All ranks create it.

    Its content is undefined at first. Views (``local``, ``whole``) are torch tensors on this rank's GPU, which
    other libraries read through DLPack. :meth:`close` or the end of the run frees the memory. Unused memory is also
    freed when all ranks create a new tensor.

    Args:
        shape: of the whole tensor.
        dtype: any dtype.
        kind: ``continuous``: the ranks of each node hold the whole tensor, and read all rows at one range of addresses.
            ``distributed``: all ranks hold it together. Each reads its own rows only, and gets others by
            :class:`manyhop.features.GPUExchange`.
        name: for errors.
        timeout: seconds to wait for other ranks.

    Raises:
        CapacityError: there is not enough memory, on this rank or another; WholeGraph itself would end the process.
        FeatureError: a shape without rows, or of rows without numbers.
        InputError: an unknown kind, or one that the GPUs do not support; ranks that share a GPU.
        MissingExtraError: pylibwholegraph is not installed.
        RankError: ranks request different tensors, or are late.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        kind: Kind = "continuous",
        name: str = "a tensor",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        Division(tuple(shape), dtype, 1, kind)  # raises errors that are equal on all ranks before any collective
        self._name, self._timeout = name, timeout
        self._communicator = communicator("all" if kind == "distributed" else "node", timeout=timeout)
        self._ranks = self._communicator.ranks
        self._world = world.current()
        self._rank = self._ranks.index(self._world.rank)
        self.division = Division(tuple(shape), dtype, len(self._ranks), kind)
        facts = {"shape": list(shape), "dtype": str(dtype), "kind": kind}
        control.agree(f"WholeMemory for {name}", facts, timeout=timeout)
        self._require_support()
        self._communicator.free_unused(timeout=timeout)
        require_room(self.division, self._ranks.index(self._world.rank), name=name, timeout=timeout)
        self._allocate()

    @classmethod
    def from_files(
        cls,
        paths: Rows | Paths,
        *,
        column: str | None = None,
        kind: Kind = "continuous",
        threads: int | None = None,
        progress: bool | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> WholeMemory:
        """Return a tensor from one file or several (see :func:`manyhop.files.open`): each rank reads its own rows only.

        Args:
            paths: the files, equal on all ranks, or the result of ``manyhop.files.open``.
            column: which tensor of a safetensors file, which column of a Parquet file.
            kind, timeout: see :class:`WholeMemory`; reading may take longer.
            threads: how many threads of each rank read; ``None``: one per core, at most 8.
            progress: whether a progress bar is written to stderr; ``None``: on a terminal, after a second.

        Raises:
            InputError: a file that is missing or damaged; and what :class:`WholeMemory` raises.
        """
        rows = paths if isinstance(paths, Rows) else open_rows(paths, name=column)
        name = str(rows.paths[0]) if len(rows.paths) == 1 else f"{len(rows.paths)} files"
        memory = cls(rows.shape, rows.dtype, kind=kind, name=name, timeout=timeout)
        memory.load(rows, threads=threads, progress=progress)
        return memory

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return self.division.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the rows."""
        return self.division.dtype

    @property
    def local_rows(self) -> range:
        """Return the numbers of the rows that this rank holds."""
        return self.division.shards.rows_of(self._rank)

    @cached_property
    def local(self) -> Tensor:
        """Return ``[len(local_rows), ...]``: the rows that this rank holds."""
        if self.division.kind == "continuous":
            return self.whole[self.local_rows.start : self.local_rows.stop]
        flat, _ = self._handle.get_local_flatten_tensor(self._import, *self._view())
        return self._shaped(flat, len(self.local_rows))

    @cached_property
    def whole(self) -> Tensor:
        """Return ``[num_rows, ...]``: all rows, which a GPU reads as if they were its own.

        Raises:
            InputError: the tensor is not continuous.
        """
        if self.division.kind != "continuous":
            raise InputError(
                f"Expected a continuous tensor for a view of the whole, got {self._name}, which is "
                f"{self.division.kind}. Make it with kind='continuous', or use its local part."
            )
        flat, _ = self._handle.get_global_flatten_tensor(self._import, *self._view())
        return self._shaped(flat, self.shape[0])

    def rows(self) -> DistributedRows:
        """Return a source for :func:`manyhop.features.gather`: rows that ranks exchange.

        Raises:
            InputError: the tensor is not over all ranks.
        """
        if len(self._ranks) != self._world.world_size:
            raise InputError(
                f"Expected a tensor over all ranks to exchange rows, got {self._name}: use kind='distributed'."
            )
        return DistributedRows(self.local, self.shape[0], self._world)

    def load(
        self,
        source: Rows | Paths,
        *,
        threads: int | None = None,
        progress: bool | None = None,
        column: str | None = None,
    ) -> None:
        """Fill it from files: each rank reads its own rows only. All ranks call it; arguments as in :meth:`from_files`.

        Raises:
            FeatureError: the files have a different shape or dtype.
            InputError: a file that is missing or damaged.
        """
        rows = source if isinstance(source, Rows) else open_rows(source, name=column)
        self._require_same(rows.shape, rows.dtype, "the files")
        read_rows(rows, self.local_rows, self.local, threads=threads, progress=progress)
        self.finish("is loaded")

    def copy_from(self, source: Tensor) -> None:
        """Fill it from a tensor that all ranks have, of which each copies its own rows. All ranks call it.

        Raises:
            FeatureError: ``source`` has a different shape or dtype.
        """
        self._require_same(tuple(source.shape), source.dtype, "the source")
        own = source[self.local_rows.start : self.local_rows.stop]
        copy_rows(self.local, own, f"Copying {self._name} to {self.local.device}")
        self.finish("is copied")

    def put(self, part: Tensor, begin: int) -> None:
        """Fill it from parts: every rank has some rows, and together they have every row once. All call it.

        Args:
            part: ``[count, ...]``: the rows from ``begin`` on; may be empty.
            begin: number of the first row of this part.

        Raises:
            FeatureError: the parts do not follow each other, or have a different shape or dtype.
        """
        self._require_same((self.shape[0], *part.shape[1:]), part.dtype, "the part")
        facts = {"begin": begin, "end": begin + len(part)}
        every = control.exchange(f"parts of {self._name}", facts, timeout=self._timeout)
        parts = [range(every[rank]["begin"], every[rank]["end"]) for rank in self._ranks]
        if check_parts(parts, self._name) != self.shape[0]:
            raise FeatureError(f"Expected parts of {self._name} with its {self.shape[0]} rows, got rows {parts}.")
        shards = self.division.shards
        have, held = parts[self._rank], [shards.rows_of(rank) for rank in range(len(parts))]
        if self.division.kind == "continuous":
            for rows in held:  # a copy writes to one GPU
                copy_overlap(part, have, self.whole[rows.start : rows.stop], rows)
        else:
            flows = {
                (a, b): overlap(parts[a], rows) for a in range(len(parts)) for b, rows in enumerate(held) if a != b
            }
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout)) if flows else None
            send = partial(dist.all_to_all_single, group=group)
            try:
                send_rows(part, have, self.local, self.local_rows, flows, self._rank, len(parts), send)
            finally:
                if group is not None:
                    dist.destroy_process_group(group)
        self.finish("is put together")

    def finish(self, what: str) -> None:
        """Wait until all ranks have written to ``local`` or other views. All ranks call it."""
        torch.cuda.synchronize()
        control.exchange(f"{self._name} {what}", {}, timeout=self._timeout)

    def close(self) -> None:
        """Free the memory. All ranks call it, and nothing may use the views any more."""
        if self._number in self._communicator.memories:
            self.finish("is closed")
            for view in ("local", "whole"):
                self.__dict__.pop(view, None)
            self._communicator.free(self._number)

    def _allocate(self) -> None:
        wmb, division = binding(), self.division
        partition = torch.tensor(division.partition, dtype=torch.uint64, device="cpu").numpy()
        handle, place = self._communicator.handle, self._type_and_location()
        self._handle = wmb.malloc(division.allocated_bytes, handle, *place, division.row_bytes, partition)
        self._number = self._communicator.add(self._handle)
        self._lease = _Lease()
        weakref.finalize(self._lease, self._communicator.unused.add, self._number).atexit = False

    def _require_support(self) -> None:
        if self.division.kind == "continuous" and len(self._ranks) > 1 and not self._communicator.sees_gpus:
            local = [rank for rank in self._ranks if rank in self._world.local_ranks]
            require_contexts(local, name=self._name, timeout=self._timeout)
            self._communicator.sees_gpus = True
        if not self._communicator.handle.support_type_location(*self._type_and_location()):
            raise InputError(
                f"{self._name}: WholeGraph cannot make {self.division.kind} memory over "
                f"{control.rank_names(self._ranks)}: their GPUs cannot read each other's memory, or they are on "
                "multiple nodes. Use kind='distributed'."
            )

    def _type_and_location(self) -> tuple[object, object]:
        wmb = binding()
        kinds = wmb.WholeMemoryMemoryType
        kind = kinds.MtContinuous if self.division.kind == "continuous" else kinds.MtDistributed
        return kind, wmb.WholeMemoryMemoryLocation.MlDevice

    def _view(self) -> tuple[object, object, int]:
        """Return the type and location of a view of WholeGraph's memory, which is one of bytes."""
        wmb = binding()
        return wmb.WholeMemoryDataType.DtInt8, wmb.WholeMemoryMemoryLocation.MlDevice, torch.cuda.current_device()

    def _import(self, view: Any) -> Tensor:
        view.typestr = _TypeString(view.typestr)  # a view retains it, and its tensor's memory retains the view
        view.typestr.lease = self._lease
        return torch.utils.dlpack.from_dlpack(view.__dlpack__())

    def _shaped(self, flat: Tensor, num_rows: int) -> Tensor:
        used = flat[: num_rows * self.division.row_bytes]  # a rank without rows has one all the same
        return used.view(self.dtype).view(num_rows, *self.shape[1:])

    def _require_same(self, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
        if (shape, dtype) != (self.shape, self.dtype):
            raise FeatureError(
                f"Expected {what} to have the shape {list(self.shape)} and {self.dtype} for {self._name}, got "
                f"{list(shape)} and {dtype}."
            )


class _Lease:
    """Lives as long as something uses the memory."""


class _TypeString(str):
    """The type of a view of WholeGraph's memory, which keeps the memory."""

    lease: _Lease


_ALIGNMENT = 256  # bytes


def share_graph(graph: Graph, *, timeout: float = DEFAULT_TIMEOUT) -> tuple[Graph, WholeMemory]:
    """Copy a graph to memory that the GPUs of a node hold together. All ranks call it, with the same graph.

    Every rank copies its part of the tables, so a graph in memory that ranks share is read once per node. One
    allocation holds all tables; each GPU has the same share of it.

    Args:
        graph: its tables in memory of the host or of this rank's GPU.
        timeout: seconds to wait for other ranks.

    Returns:
        The graph, whose tables are CUDA tensors, for ``GPUSampler``; and the memory, which remains until it is closed
        or the run ends.

    Raises:
        CapacityError: there is not enough memory on the GPUs.
        RankError: ranks have different graphs, or are late.
    """
    tables = [*graph.tables(), *graph.node_time.values()]
    shapes = [(list(table.shape), str(table.dtype)) for table in tables]
    facts = zlib.crc32(repr([list(graph.csc), list(graph.node_time), shapes]).encode())
    control.agree("a graph over several GPUs", {"tables": facts}, timeout=timeout)
    *begins, total = accumulate((-(-table.nbytes // _ALIGNMENT) * _ALIGNMENT for table in tables), initial=0)
    memory = WholeMemory((total,), torch.uint8, name="the topology", timeout=timeout)
    for begin, table in zip(begins, tables, strict=True):
        copy_overlap(flat_bytes(table), range(begin, begin + table.nbytes), memory.local, memory.local_rows)
    memory.finish("is copied")
    views = (
        memory.whole[begin : begin + table.nbytes].view(table.dtype)
        for begin, table in zip(begins, tables, strict=True)
    )
    csc = {}
    for edge_type, edges in graph.csc.items():
        there: dict[str, Any] = {name: next(views) for name in edges.tables()}
        csc[edge_type] = replace(edges.made(), **there)
    return replace(graph, csc=csc, node_time={node_type: next(views) for node_type in graph.node_time}), memory
