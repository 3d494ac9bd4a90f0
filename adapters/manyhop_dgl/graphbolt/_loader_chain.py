"""A chain of pipes, cut into what makes items and what is done to them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterDataPipe

from manyhop import _cuda
from manyhop_dgl.graphbolt._stages import CopyTo, Stages, chain_of


class Relay(IterDataPipe[Any]):
    """Stands before a pipe that a loader cannot look into: hands it what the loader has made ahead.

    Without a loader at work it hands on what the pipe before it gives.
    """

    def __init__(self, datapipe: Any) -> None:
        super().__init__()
        self.datapipe = datapipe
        self.made_ahead: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        made, self.made_ahead = self.made_ahead, None
        yield from self.datapipe if made is None else made

    def __len__(self) -> int:
        return len(self.datapipe)


@dataclass(frozen=True)
class Part:
    """A part of a chain."""

    source: Any
    """The pipe that makes the items."""

    relay: Relay | None
    """What the source takes its items from, if it is another part; ``None``: it is the first."""

    stages: Stages
    """What is done to each item."""


def parts_of(pipe: Any) -> list[Part]:
    """The parts of a chain of pipes, from its beginning to ``pipe``.

    Pipes that change the number or the order of items, such as those that users write, begin a part of their own. A
    :class:`Relay` is put before those.
    """
    source, stages = chain_of(pipe)
    upstream = [name for name, value in vars(source).items() if isinstance(value, IterDataPipe)]
    if len(upstream) != 1:
        return [Part(source, None, stages)]
    before = getattr(source, upstream[0])
    if not isinstance(before, Relay):
        before = Relay(before)
        setattr(source, upstream[0], before)
    return [*parts_of(before.datapipe), Part(source, before, stages)]


def gpu_of(parts: list[Part]) -> torch.device | None:
    """The GPU that minibatches are made on, or moved to: that of ``copy_to``, else the process's, if it uses one."""
    for part in parts:
        for stage in (*part.stages.ours, *part.stages.rest):
            if isinstance(stage, CopyTo) and stage.device.type == "cuda":
                index = stage.device.index
                return torch.device("cuda", torch.cuda.current_device() if index is None else index)
    if _cuda.initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return None
