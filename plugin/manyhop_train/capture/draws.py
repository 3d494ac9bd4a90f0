"""Random numbers that a step draws on the host: graphs repeat those of the recording."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from manyhop.errors import InputError


@contextmanager
def none_on_host(device: torch.device) -> Iterator[None]:
    """Raise InputError after the block if Python, numpy or torch has drawn on the host in it.

    Args:
        device: where the block computes; there, torch may draw.
    """
    before = _states(device)
    yield
    for name, state in _states(device).items():
        if state != before[name]:
            raise InputError(f"it draws random numbers from {name} on the host. Draw them outside, into the batch")


def _states(device: torch.device) -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state()
        states["numpy.random"] = (state[1].tobytes(), *state[2:])
    if device.type != "cpu":
        states["torch's generator"] = torch.get_rng_state().numpy().tobytes()
    return states
