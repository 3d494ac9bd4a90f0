"""Losses, metrics and batch normalisation that leave padding out; see ``pad="auto"`` of the loaders.

They never wait for the GPU, so that a step with them can be captured.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import batch_norm

from manyhop.errors import InputError

__all__ = ["MaskedBatchNorm", "masked_mean"]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average rows without padding, such as losses (``reduction="none"``) or correct predictions.

    Args:
        values: ``[num_rows, ...]`` of any dtype; padding may be infinite or NaN.
        mask: ``[num_rows] bool``, true for rows to average.

    Returns:
        ``[...]`` mean of these rows, in float32 for integers and bools; 0 without rows.

    Raises:
        InputError: ``mask`` is not a mask, or has another length.
    """
    _check(values, mask)
    values = values if values.is_floating_point() else values.float()
    return _where(mask, values).sum(0) / mask.sum().clamp(min=1)


class MaskedBatchNorm(torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` whose statistics leave rows of padding out. Arguments and states are the same.

    The rows of padding in the result are zeros.
    """

    def forward(self, input: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]  # one argument more
        """Normalize ``input[mask]``.

        Args:
            input: ``[num_rows, num_features]``.
            mask: ``[num_rows] bool``, true for the rows to normalize, at least two.

        Raises:
            InputError: ``mask`` is not a mask, or has another length; an input of another shape.
        """
        _check(input, mask)
        if input.dim() != 2 or input.size(1) != self.num_features:
            raise InputError(f"Expected an input [num_rows, {self.num_features}], got {list(input.shape)}.")
        x = _where(mask, input)
        if not self.training and self.running_mean is not None:
            out = batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
            return _where(mask, out)
        x, count = x.float(), mask.sum().clamp(min=1)
        mean = x.sum(0) / count
        centred = _where(mask, x - mean)
        var = centred.square().sum(0) / count
        if self.training and self.track_running_stats:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                share = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
                self.running_mean += share * (mean - self.running_mean)
                self.running_var += share * (var * count / (count - 1).clamp(min=1) - self.running_var)
        out = centred * (var + self.eps).rsqrt()
        if self.weight is not None:
            out = _where(mask, out * self.weight + self.bias)
        return out.to(input.dtype)


def _where(mask: Tensor, values: Tensor) -> Tensor:
    """Return the rows of the mask, and zeros elsewhere."""
    return torch.where(mask.view(-1, *(1,) * (values.dim() - 1)), values, 0)


def _check(values: Tensor, mask: Tensor) -> None:
    if mask.dtype != torch.bool or mask.dim() != 1 or values.dim() == 0 or mask.size(0) != values.size(0):
        raise InputError(
            f"Expected a mask of bools, one for each row of {list(values.shape)}, got {mask.dtype} of shape "
            f"{list(mask.shape)}. Pass node_mask, edge_mask or seed_mask of the batch, cut to the same rows."
        )
