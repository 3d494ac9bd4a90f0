"""Items of a batch -> a minibatch with their names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from manyhop.errors import InputError
from manyhop_dgl.graphbolt.items.minibatch import MiniBatch
from manyhop_dgl.graphbolt.typing import GBWarning

Minibatcher = Callable[[Any, tuple[str | None, ...] | None], Any]


def minibatcher_default(batch: Any, names: tuple[str | None, ...] | None) -> Any:
    """Make a :class:`MiniBatch` of the items of a batch, as attributes of their names.

    Args:
        batch: what an item set gives for several indices: a tensor, a tuple, or a dictionary of those by type.
        names: one per element of an item, ``None`` for those to leave out; instead of a tuple, ``None``: the batch is
            returned as it is, with a warning.

    Raises:
        InputError: ``node_pairs`` that are not ``[n, 2]``.
    """
    if names is None:
        warnings.warn(
            "Failed to map item list to `MiniBatch` as the names of items are not provided. Please provide a "
            "customized `MiniBatcher`. The item list is returned as is.",
            GBWarning,
            stacklevel=2,
        )
        return batch
    minibatch: object = MiniBatch()
    for i, name in enumerate(names):
        if name is None:
            continue
        if len(names) == 1:
            item = batch
        elif isinstance(batch, Mapping):
            item = {key: value[i] for key, value in batch.items()}
        else:
            item = batch[i]
        if not hasattr(minibatch, name) and name != "timestamp":  # which temporal samplers read
            warnings.warn(
                f"Unknown item name '{name}' is detected and added into `MiniBatch`. You probably need to provide a "
                "customized `MiniBatcher`.",
                GBWarning,
                stacklevel=2,
            )
        if name == "node_pairs":
            item = {key: _ends(value) for key, value in item.items()} if isinstance(item, Mapping) else _ends(item)
        setattr(minibatch, name, item)
    return minibatch


def _ends(pairs: object) -> Any:
    """``[n, 2]`` pairs -> sources and destinations."""
    if not isinstance(pairs, torch.Tensor):
        return pairs
    if pairs.dim() != 2 or pairs.size(1) != 2:
        raise InputError(f"Expected node_pairs of shape [n, 2], got {list(pairs.shape)}.")
    return pairs[:, 0], pairs[:, 1]
