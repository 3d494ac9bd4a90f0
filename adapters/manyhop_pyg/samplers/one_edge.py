"""An order of seed edges in which an epoch has one edge of each node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop.sampling.random import Use, below, draw, make_key


class OneEdgePerNode(Sampler[int]):
    """Seed edges of an epoch: for each node one of its edges, another one in each epoch, in random order.

    Pass it as ``sampler`` of a link loader. An epoch then has as many seed edges as there are nodes with edges, each
    with negatives of its own: what BPR asks for, and others that learn from a positive and a negative per node.

    Args:
        nodes: ``[num_seeds]`` the node of each of the loader's seed edges: ``edge_label_index[0]``, or its other end.
        seed: what the choices are a function of, with the number of the epoch.

    Raises:
        InputError: arguments that do not make sense.
    """

    def __init__(self, nodes: Tensor, seed: int = 0) -> None:
        if not isinstance(nodes, Tensor) or nodes.dim() != 1 or nodes.is_floating_point() or nodes.dtype == torch.bool:
            got = f"{nodes.dtype} {list(nodes.shape)}" if isinstance(nodes, Tensor) else f"a {type(nodes).__name__}"
            raise InputError(f"Expected nodes as integers of shape [num_seeds], got {got}. Pass edge_label_index[0].")
        ids, order = torch.sort(nodes.cpu(), stable=True)
        _, counts = torch.unique_consecutive(ids, return_counts=True)
        self._order, self._counts = order.numpy(), counts.numpy()
        self._seed = integer("seed", seed)
        self._epoch, self._position, self._is_loaded = 0, 0, False

    def __len__(self) -> int:
        """Nodes that have edges."""
        return int(self._counts.size)

    def __iter__(self) -> Iterator[int]:
        """Go through the next epoch, or through the rest of the one whose state has been loaded."""
        if self._position and not self._is_loaded:
            self._epoch, self._position = self._epoch + 1, 0
        self._is_loaded = False
        chosen = self._choose(self._epoch)
        while self._position < len(chosen):
            self._position += 1
            yield chosen[self._position - 1]
        self._epoch, self._position = self._epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the number of the epoch, and of the edges that it has yielded."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where a state was taken, in the next iteration."""
        self._epoch, self._position, self._is_loaded = state["epoch"], state["position"], True

    def _choose(self, epoch: int) -> list[int]:
        """Return the positions of an epoch's edges among the loader's, ``num_nodes`` of them."""
        key, n = make_key(Use.ONE_EDGE, self._seed, epoch), self._counts.size
        first = np.cumsum(self._counts) - self._counts
        chosen = self._order[first + below(draw(key, np.arange(n)), self._counts)]
        found: list[int] = chosen[np.argsort(draw(key, n + np.arange(n)), kind="stable")].tolist()
        return found
