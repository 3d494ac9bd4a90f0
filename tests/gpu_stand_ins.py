"""What stands for a GPU and its memory where there is none."""

import contextlib
from types import SimpleNamespace
from typing import Any

import torch

from manyhop.pipeline import OnStream

CPU = torch.device("cpu")

MEMORY = SimpleNamespace(
    topology="device",
    placement=SimpleNamespace(features=(), summary=lambda: ""),
    take_cache_counts=lambda: (0, 0),
    placed=lambda name, value, watch: value,
    cached={},
    exchanges=False,
    cache_bytes=0,
    has_hot_rows=False,
    take_hot_rows=lambda: None,
)
"""What loaders decide on: all is in the memory of the GPU."""


class NoStreams:
    """Where there is no GPU, everything is in order by itself."""

    def __init__(self, device: torch.device, stats: Any, *, backlog: int) -> None:
        self.stats = stats

    def begin(self) -> None: ...
    def settle(self) -> None: ...
    def synchronize(self) -> None: ...
    def take_times(self) -> None: ...
    def forget_times(self) -> None: ...
    def mark(self, timed: bool = True) -> float:
        return 0.0

    def here(self) -> Any:
        return contextlib.nullcontext()

    def took(self, *what: Any) -> None: ...

    def hand_over(self, value: Any, timed: bool = False) -> Any:
        return OnStream(value, None)  # type: ignore[arg-type]

    def lend(self, value: Any) -> Any:
        return OnStream(value, None)  # type: ignore[arg-type]

    def adopt(self, made: Any) -> Any:
        return made.value

    def receive(self, made: Any, tensors_of: Any, times: int) -> Any:
        return made.value
