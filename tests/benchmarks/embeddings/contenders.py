"""Trainable rows and Adam of manyhop, torch, WholeGraph and cuGraph-PyG: what ``benchmarks embeddings`` measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import manyhop
from benchmarks.common.machine import import_quietly
from benchmarks.gpu.timing import Ranks
from manyhop import optim
from manyhop.memory.stores import StorePlace

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Contender:
    """A table, and an optimizer of it."""

    forward: Callable[[], Tensor]
    """``[count, width]``: the rows of the batch, with a graph for ``backward``."""
    step: Callable[[], object]
    """Applies the gradients of ``backward``, and forgets them; also after several forwards."""
    close: Callable[[], object] = lambda: None
    """Gives memory back that does not go by itself."""


Make = Callable[[int, int, Tensor], Contender]
"""``make(num_rows, width, ids)``: a table ``[num_rows, width]``, for batches of ``[count]`` ids. All ranks call it."""


def contenders(ranks: Ranks) -> Iterator[tuple[str, Make]]:
    """Return names and what makes them: the first is manyhop's; none of them may be installed."""
    ours = "manyhop.Embedding, optim.Adam"
    if not ranks.on_gpu:
        yield ours, partial(_manyhop, "process")
    elif ranks.size == 1:
        yield ours, partial(_manyhop, "device")
    else:
        yield f"{ours}: distributed", partial(_manyhop, "distributed")
        yield f"{ours}: sharded", partial(_manyhop, "sharded")
    if ranks.size == 1:
        yield "torch.nn.Embedding(sparse=True), SparseAdam", _torch
    if ranks.on_gpu:
        yield "WholeGraph, continuous", partial(_wholegraph, partial(_whole_embedding, "continuous"))
        if ranks.size > 1:
            yield "WholeGraph, distributed", partial(_wholegraph, partial(_whole_embedding, "distributed"))
        yield "cuGraph-PyG's DistEmbedding, nccl", partial(_wholegraph, _dist_embedding)


def _manyhop(placement: StorePlace, num_rows: int, width: int, ids: Tensor) -> Contender:
    device = "cuda" if placement == "sharded" else None
    table = manyhop.Embedding(num_rows, width, placement=placement, device=device)
    return Contender(lambda: table(ids), optim.Adam(table, lr=LEARNING_RATE).step)


def _torch(num_rows: int, width: int, ids: Tensor) -> Contender:
    table = torch.nn.Embedding(num_rows, width, sparse=True, device=ids.device)
    adam = torch.optim.SparseAdam(table.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        adam.step()  # type: ignore[no-untyped-call]  # of torch
        adam.zero_grad()

    return Contender(lambda: table(ids), step)


def _wholegraph(make: Callable[[int, int], Any], num_rows: int, width: int, ids: Tensor) -> Contender:
    embeddings = import_quietly("pylibwholegraph.torch.embedding")
    _share_communicator()
    table = make(num_rows, width)
    adam = embeddings.create_wholememory_optimizer(table, "adam", {})
    module = embeddings.WholeMemoryEmbeddingModule(table)

    def step() -> None:
        table.need_apply = True  # which forward sets: here, several come before the first step
        adam.step(LEARNING_RATE)

    def close() -> None:
        embeddings.destroy_embedding(table)
        embeddings.destroy_wholememory_optimizer(adam)

    return Contender(lambda: module(ids), step, close)


def _whole_embedding(memory: str, num_rows: int, width: int) -> Any:
    embeddings = import_quietly("pylibwholegraph.torch.embedding")
    comm = import_quietly("pylibwholegraph.torch.comm").get_global_communicator()
    return embeddings.create_embedding(comm, memory, "cuda", torch.float32, [num_rows, width], random_init=True)


def _dist_embedding(num_rows: int, width: int) -> Any:
    """Return the table of a ``DistEmbedding``, which has no optimizer of its own: WholeGraph's trains it."""
    tensors = import_quietly("cugraph_pyg.tensor")
    return tensors.DistEmbedding(shape=[num_rows, width], dtype=torch.float32, device="cuda")._embedding


def _share_communicator() -> None:
    """Have WholeGraph's Python use manyhop's communicator of all ranks: WholeGraph can be started only once."""
    from manyhop.features.whole_memory.communicators import communicator

    comm = import_quietly("pylibwholegraph.torch.comm")
    if not comm.global_communicators:
        comm.global_communicators["nccl"] = comm.WholeMemoryCommunicator(communicator("all", timeout=60).handle)
