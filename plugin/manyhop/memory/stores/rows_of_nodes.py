"""Tensors that the ranks store together: once per node, whole or in parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.errors import FeatureError, GraphError, RankError
from manyhop.features import BufferPool, DistributedRows, Exchange, RowRequest, ShardedRows, Shards, node_memory, spread
from manyhop.features.whole_memory.partition import read_rows
from manyhop.files import Rows
from manyhop.files.dtypes import dtype_name, dtype_of_name
from manyhop.memory.sharing import share
from manyhop.memory.stores.copies import checksum
from manyhop.ranks import control, world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.ranks.world import World
from manyhop.system.arrays import describe, has_memory
from manyhop.system.memory import require_memory

Fill: TypeAlias = Callable[[range, Tensor], None]
"""``fill(rows, out)`` writes rows of a tensor, by their numbers, into ``out``, ``[len(rows), ...]``."""

AnyRows: TypeAlias = Tensor | ShardedRows | DistributedRows


class PlacedRows:
    """Rows in the places of a store. All ranks create it and call its methods, which raise:

    - CapacityError: there is not enough memory.
    - FeatureError: not a tensor; parts that do not fit together.
    - RankError: ranks pass different tensors; another rank failed or is late.
    """

    _numbers = itertools.count(1)

    def __init__(self, title: str, timeout: float) -> None:
        self._timeout, self._title = timeout, f"{title} {next(self._numbers)}"
        self._calls = itertools.count()

    def put(self, tensor: Any, index: Any, name: str) -> AnyRows:
        """Return a tensor of all ranks: whole (``index`` is ``None`` or ``slice(None)``), or a part (``slice(begin,
        end)``).
        """
        raise NotImplementedError

    def make(self, shape: Sequence[int], dtype: torch.dtype, name: str, fill: Fill) -> AnyRows:
        """Return a tensor that exists once: every rank writes a part of the rows, with ``fill``, which must not
        communicate.
        """
        raise NotImplementedError

    def exchange(self, requests: list[RowRequest], pool: BufferPool) -> list[Tensor]:
        """Gather rows outside of a loader."""
        raise NotImplementedError

    def read(self, rows: Rows, name: str) -> AnyRows:
        """Return a tensor in files that all nodes see: every rank reads a part of the rows.

        Raises:
            InputError: a file that is truncated or damaged.
        """
        return self.make(
            rows.shape, rows.dtype, name, lambda wanted, out: read_rows(rows, wanted, out, threads=None, progress=None)
        )


class NodeRows(PlacedRows):
    """Place tensors in the memory of nodes, and gather rows that are spread over nodes.

    Args:
        sharded: whether every node holds a part of the rows instead of all.
        timeout: seconds to wait for other ranks.
    """

    def __init__(self, sharded: bool, timeout: float) -> None:
        super().__init__("store", timeout)
        self._sharded = sharded
        self._exchange: Exchange | None = None

    def put(self, tensor: Any, index: Any, name: str) -> Tensor | ShardedRows:
        ours, what = world.init(timeout=self._timeout), f"{self._title}, {name}"
        begin = begin_of(tensor, index, name, what, self._timeout)
        if begin is None:
            return self._put_whole(tensor, ours, what)
        part, num_rows = part_of_rows(as_tensor(name, tensor), begin, what, self._timeout)
        rows = spread(part, begin, self._wanted(num_rows, ours), self._connected(), what, self._timeout)
        return self._held(rows, num_rows, ours)

    def make(self, shape: Sequence[int], dtype: torch.dtype, name: str, fill: Fill) -> Tensor | ShardedRows:
        ours, what = world.init(timeout=self._timeout), f"{self._title}, {name}"
        control.agree(what, {"dtype": str(dtype), "shape": list(shape)}, timeout=DEFAULT_TIMEOUT)
        self._connected()
        mine = self._wanted(shape[0], ours)[ours.node]
        part = Shards(len(mine), ours.local_world_size).rows_of(ours.local_rank)

        def filled() -> Tensor:
            if ours.local_rank == 0:
                needed = len(mine) * math.prod(shape[1:]) * dtype.itemsize
                require_memory(name, needed, "Spread it over more nodes, or over GPUs: placement='sharded'.")
            held = node_memory((len(mine), *shape[1:]), dtype, what)
            fill(range(mine.start + part.start, mine.start + part.stop), held[part.start : part.stop])
            return held

        return self._held(control.attempt(f"{what} is filled", filled, timeout=DEFAULT_TIMEOUT), shape[0], ours)

    def join(self, parts: Mapping[str, Tensor], name: str) -> list[Tensor]:
        """Return the concatenated parts of all ranks, in the order of the ranks; GraphError if two are the same."""
        ours = world.init(timeout=self._timeout)
        counts = counts_of_parts([*parts.values()], name, f"{self._title}, {name}", self._timeout)
        begin, wanted = sum(counts[: ours.rank]), self._wanted(sum(counts), ours)
        return [
            spread(part, begin, wanted, self._connected(), f"{self._title}, {one} of the {name}", self._timeout)
            for one, part in parts.items()
        ]

    def exchange(self, requests: list[RowRequest], pool: BufferPool) -> list[Tensor]:
        return self._connected().gather(requests, (0, next(self._calls)), pool=pool)

    def _put_whole(self, tensor: Any, ours: World, what: str) -> Tensor | ShardedRows:
        facts = {"dtype": str(tensor.dtype), "shape": list(tensor.shape)}
        control.agree(what, facts, timeout=self._timeout)
        wanted = self._wanted(len(tensor), ours)[ours.node]
        rows = share(lambda: as_tensor(what, tensor[wanted.start : wanted.stop]).contiguous(), what=what)
        self._connected()
        return self._held(rows, len(tensor), ours)

    def _held(self, rows: Tensor, num_rows: int, ours: World) -> Tensor | ShardedRows:
        return ShardedRows(rows, num_rows, ours) if self._sharded and ours.num_nodes > 1 else rows

    def _wanted(self, num_rows: int, ours: World) -> list[range]:
        shards = Shards(num_rows, ours.num_nodes if self._sharded else 1)
        return [shards.rows_of(node if self._sharded else 0) for node in range(ours.num_nodes)]

    def _connected(self) -> Exchange:
        if self._exchange is None:
            self._exchange = Exchange(self._title, timeout=self._timeout)
            world.at_shutdown(self._exchange.close)
        return self._exchange


def counts_of_parts(part: Sequence[Tensor], name: str, what: str, timeout: float) -> list[int]:
    """Return how many entries the part of each rank has; GraphError if two are the same. All ranks call it."""
    ours, count = world.init(timeout=timeout), len(part[0])
    if ours.world_size == 1:
        return [count]
    facts = {"length": count, "digest": [checksum(tensor) for tensor in part]}
    every = control.exchange(f"lengths of {what}", facts, timeout=timeout)
    first: dict[object, int] = {}
    for rank, other in enumerate(every):
        before = first.setdefault((other["length"], *other["digest"]), rank)
        if before != rank and other["length"]:
            raise GraphError(
                f"Expected a different part of the {name} on each rank, got the same {other['length']} on ranks "
                f"{before} and {rank}: each would be stored twice. Pass every edge on one rank only, and an empty part "
                "on a rank without edges."
            )
    return [other["length"] for other in every]


def begin_of(tensor: Any, index: Any, name: str, what: str, timeout: float, *, on_gpu: bool = False) -> int | None:
    """Return where a rank's part of a tensor begins; ``None``: it is the whole. All ranks call it."""
    problem, begin = _problem(tensor, index, name, on_gpu=on_gpu)
    every = control.exchange(what, {"problem": problem, "part": begin is not None}, timeout=timeout)
    if problem:
        raise FeatureError(problem)
    wrong = tuple(rank for rank, facts in enumerate(every) if facts["problem"])
    if wrong:
        raise RankError(f"{what}: {control.rank_names(wrong)} failed: {every[wrong[0]]['problem']}", ranks=wrong)
    if len({facts["part"] for facts in every}) > 1:
        raise FeatureError(
            f"Expected {name} either whole on all ranks or in parts on all ranks, got parts, index=slice(begin, "
            "end), on some. Pass an empty part on ranks without rows."
        )
    return begin


def part_of_rows(part: Tensor, begin: int, what: str, timeout: float) -> tuple[Tensor, int]:
    """Return a rank's part of a tensor, and the number of all rows. All ranks call it.

    A part without rows gets the shape and dtype of the others: its rank may lack them.
    """
    facts: dict[str, Any] = {"end": begin + len(part)}
    if len(part):
        facts |= {"dtype": dtype_name(part.dtype), "shape": list(part.shape[1:])}
    every = control.exchange(f"end of {what}", facts, timeout=timeout)
    like = next((other for other in every if "dtype" in other), None)
    if len(part) == 0 and like is not None:
        part = torch.empty(0, *like["shape"], dtype=dtype_of_name(like["dtype"], what), device=part.device)
    return part, max(other["end"] for other in every)


def _problem(tensor: Any, index: Any, name: str, *, on_gpu: bool) -> tuple[str, int | None]:
    """Return the problem with a rank's tensor, and the begin of its part (``None``: it is the whole)."""
    dense = isinstance(tensor, np.ndarray) or (
        isinstance(tensor, Tensor) and has_memory(tensor) and (on_gpu or tensor.device.type == "cpu")
    )
    if not dense:
        where = "" if on_gpu else " in CPU memory, to be held once per node"
        return f"Expected {name} as a dense tensor or array{where}, got {describe(tensor)}.", None
    if index is None or (isinstance(index, slice) and index == slice(None)):
        return "", None
    if isinstance(index, slice) and index.step in (None, 1) and isinstance(index.stop, int):
        begin = index.start or 0
        if begin >= 0 and begin + len(tensor) == index.stop:
            return "", begin
    return (
        f"Expected {name} whole (index=None), or a part with its place, index=slice(begin, begin + {len(tensor)}), got "
        f"index={index!r} for {len(tensor)} rows. What ranks hold together is only replaced as a whole."
    ), None
