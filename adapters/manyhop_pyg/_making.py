"""How the batches of one epoch are made: in which steps, in which thread, on which device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch_geometric.sampler import NodeSamplerInput

from manyhop.loading import Epoch, Item
from manyhop.pipeline import Groups, OnStream, Turn
from manyhop.sampling import BatchKey

Make = Callable[[int, Item], Any] | Groups[Item, Any]
Finish = Callable[[int, Any], Any]


def on_cpu(loader: Any, epoch: Epoch, pins: bool) -> tuple[Make, Finish | None]:
    """What a thread does for a batch, and what the caller does; ``None``: nothing."""
    in_thread = loader.filter_per_worker

    def make(batch: int, item: Item) -> Any:
        turn, index = item
        with epoch.making(batch, turn), epoch.in_step(turn):
            value = loader.collate_fn(epoch.to_index(index))
        if not in_thread:
            return turn, value
        return _pinned(value) if pins else value

    def finish(batch: int, value: tuple[Turn, Any]) -> Any:
        turn, out = value
        with epoch.making(batch, turn, first_call=1), epoch.in_step(turn):
            out = loader.filter_fn(out)
        return _pinned(out) if pins else out

    return make, None if in_thread else finish


def on_gpu(loader: Any, epoch: Epoch, gpu: Any) -> tuple[Make, Finish | None]:
    """The same with a GPU: batches are sampled in groups, unless the sampler, or ``collate_fn``, is the user's."""
    streams, in_thread = gpu.streams, loader.filter_per_worker
    merges = gpu.sampling is not None and not loader._has_own_collate()
    finds = gpu.finds_inputs(loader)
    joins = merges and in_thread and epoch.steps is None and gpu.joins_groups(loader)

    def begin(batches: Sequence[tuple[int, Item]]) -> list[Callable[[], Any]]:
        begun = None
        if merges:
            with streams.here():
                if finds:
                    inputs = gpu.inputs.of(loader._plan(epoch.seed), epoch.number, [item[1] for _, item in batches])
                else:
                    inputs = inputs_of(loader, [epoch.to_index(item[1]) for _, item in batches])
                keys = [BatchKey(epoch.seed, epoch.number, batch) for batch, _ in batches]
                begun = gpu.begin(loader, inputs, keys, [item[0] for _, item in batches])
        if joins:
            return [partial(complete_of_several, begun, i, *one) for i, one in enumerate(batches)]
        return [partial(complete, begun, i, *one) for i, one in enumerate(batches)]

    def complete_of_several(begun: Any, i: int, batch: int, item: Item) -> OnStream[Any]:
        made: OnStream[Any]
        if loader.transform is None and begun.has_made(i):  # the usual case, quickly
            made = begun.take_made(loader, i)
            return made
        with epoch.making(batch, item[0], 1):
            made = begun.take_made(loader, i)
            if loader.transform is None:
                return made
            with streams.here():
                made = streams.hand_over(loader.transform(made.value), timed=made.timed)
            return made

    def complete(begun: Any, i: int, batch: int, item: Item) -> OnStream[Any]:
        turn, index = item
        with streams.here(), epoch.making(batch, turn, int(merges)), epoch.in_step(turn):
            if begun is None:
                value = loader.collate_fn(epoch.to_index(index))
            else:
                value = begun.take(i)
                loader._count(value)
                if in_thread:
                    value = loader.filter_fn(value)
            made: OnStream[Any] = streams.hand_over(value if in_thread else (turn, value), timed=gpu.is_timed(turn))
        return made

    def finish(batch: int, made: OnStream[Any]) -> Any:
        if made.source is not None and not made.source[0].holds():  # several batches were made ahead
            made = made.source[1].take_again(loader, batch)
        if not in_thread:
            turn = made.value[0]
            with streams.here(), epoch.making(batch, turn, 1), epoch.in_step(turn):
                out = loader.filter_fn(streams.adopt(made)[1])
                made = streams.hand_over(out, timed=made.timed)
        return gpu.receive(made)

    size = gpu.group_size if merges else 1
    if joins and loader.transform is None:
        return Groups(begin, size, in_a_row=gpu.joined_at_once), finish
    return Groups(begin, size), finish


def inputs_of(loader: Any, indices: list[Any]) -> list[Any]:
    """The inputs of several batches, looked up at once."""
    tensors = all(isinstance(index, torch.Tensor) and index.dtype == torch.int64 for index in indices)
    if len(indices) == 1 or not tensors:
        return [loader._inputs(index) for index in indices]
    index, given = torch.cat(indices), loader.input_data
    together = columns_of(given, index) if type(given) is NodeSamplerInput else vars(loader._inputs(index))
    sizes = [index.numel() for index in indices]
    columns = {k: v.split_with_sizes(sizes) for k, v in together.items() if isinstance(v, torch.Tensor)}
    return [
        input_of(type(given), together | {name: parts[i] for name, parts in columns.items()})
        for i in range(len(indices))
    ]


def columns_of(given: NodeSamplerInput, index: torch.Tensor) -> dict[str, Any]:
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


def _pinned(batch: Any) -> Any:
    return pin_memory(batch)  # type: ignore[no-untyped-call]  # of torch


def can_pin() -> bool:
    """Whether there is anything to pin memory for."""
    return bool(torch.accelerator.is_available())
