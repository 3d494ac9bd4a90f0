"""A chain of pipes, cut into what makes items and what is done to them one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from manyhop.errors import InputError
from manyhop.loading import own_gpu
from manyhop_dgl.graphbolt.stages.stage import CopyTo, Relay, Stages, chain_of, upstream_of


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
    name = upstream_of(source)
    if name is None:
        return [Part(source, None, stages)]
    before = getattr(source, name)
    if not isinstance(before, Relay):
        before = Relay(before)
        setattr(source, name, before)
    return [*parts_of(before.datapipe), Part(source, before, stages)]


def gpu_of(parts: list[Part]) -> torch.device | None:
    """The GPU that minibatches are made on, or moved to: that of ``copy_to``, else the process's, if it uses one.

    Raises:
        InputError: a GPU that is not there.
    """
    for part in parts:
        for stage in (*part.stages.ours, *part.stages.rest):
            if isinstance(stage, CopyTo) and stage.device.type == "cuda":
                index, count = stage.device.index, torch.cuda.device_count()
                if (index or 0) >= count:
                    raise InputError(
                        f"Expected an available device in copy_to(), got {str(stage.device)!r} with {count} CUDA "
                        "devices. Leave copy_to out, or use 'cpu'."
                    )
                return torch.device("cuda", torch.cuda.current_device() if index is None else index)
    return own_gpu()
