"""Gradients, and what their scalers know, around recordings and replays."""

from __future__ import annotations

import gc
from operator import is_

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler


class Scalers:
    """What all ``GradScaler`` know of their optimizers: a recording that fails would leave a step half done."""

    def __init__(self) -> None:
        scalers = [found for found in gc.get_objects() if issubclass(type(found), GradScaler)]
        self._before = [
            (scaler, {key: dict(state) for key, state in scaler._per_optimizer_states.items()}) for scaler in scalers
        ]

    def forget(self) -> None:
        """Put back what was known before a recording that failed."""
        for scaler, states in self._before:
            scaler._per_optimizer_states.clear()
            scaler._per_optimizer_states.update(states)


class Gradients:
    """What a graph does with the gradients of parameters: it reads and writes them where they were when recorded.

    Args:
        parameters: all parameters of the step.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = [p.grad for p in parameters]
        self._versions = [_version(grad) for grad in self._before]
        self._after: list[tuple[torch.nn.Parameter, Tensor | None, int]] = []
        self._memory: list[Tensor | None] = []
        self._needed: list[tuple[torch.nn.Parameter, Tensor | None, int]] = []

    def recorded(self, *, updates: bool) -> None:
        """Note the gradients after recording.

        Args:
            updates: whether the step calls an optimizer. Without one, a step that leaves all gradients as they were, as
                in evaluation, has nothing to do with them.
        """
        after = [p.grad for p in self._parameters]
        same = all(map(is_, after, self._before))
        if not updates and same and [_version(grad) for grad in after] == self._versions:
            self._parameters, self._before = [], []
            return
        places = [0 if grad is None else grad.data_ptr() for grad in after]
        self._after = [*zip(self._parameters, after, places, strict=True)]
        self._memory = [None if grad is None else grad.detach() for grad in after]
        self._needed = [
            (p, before, place)
            for (p, grad, place), before in zip(self._after, self._before, strict=True)
            if before is None or before is grad  # others were replaced, whatever they were
        ]
        self.forget()  # until a replay has written them
        self._before = []

    def forget(self) -> None:
        """Put back the gradients from before the recording."""
        for p, grad in zip(self._parameters, self._before, strict=True):
            p.grad = grad

    def fit(self) -> bool:
        """Whether the gradients that the graph adds to are those of now."""
        return all([p.grad is grad and (grad is None or grad.data_ptr() == place) for p, grad, place in self._needed])

    def adopt(self) -> bool:
        """Copy the gradients of now to where the graph adds to them. Return False where some are missing or left over.

        Steps that add to gradients of each other would be recorded anew for ever.
        """
        for p, grad, place in self._needed:
            if (p.grad is None) != (grad is None) or (grad is not None and grad.data_ptr() != place):
                return False
        pairs = [(p, grad, p.grad) for p, grad, _ in self._needed if grad is not None and p.grad is not grad]
        with torch.no_grad():
            if pairs:
                torch._foreach_copy_([grad for _, grad, _ in pairs], [now for _, _, now in pairs if now is not None])
        for p, grad, _ in pairs:
            p.grad = grad
        return True

    def put(self) -> None:
        """Let parameters have the gradients that the graph has written."""
        for number, (p, grad, place) in enumerate(self._after):
            if grad is not None and grad.data_ptr() != place:  # the user has given it other memory
                memory = self._memory[number]
                assert memory is not None
                grad = memory.detach()
                self._after[number] = p, grad, place
            if p.grad is not grad:
                p.grad = grad


def _version(grad: Tensor | None) -> int | None:
    """What a change in place counts up."""
    return None if grad is None else grad._version
