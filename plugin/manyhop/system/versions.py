"""Whether tensors are changed in place."""

from __future__ import annotations

from torch import Tensor


def version_of(value: object) -> int:
    """Return the number of changes of a tensor in place, as torch counts them.

    0 for anything else, and for tensors of ``torch.inference_mode()``, whose changes nobody counts.
    """
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
