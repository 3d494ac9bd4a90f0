"""Aggregation with torch's operators: the reference of the kernels, and the implementation on CPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop_train.aggregation.edges import Reduction


def aggregate_by_torch(
    x: Tensor, edge_index: Tensor, *, num_dst: int, reduce: Reduction, weight: Tensor | None
) -> Tensor:
    """Compute :func:`manyhop_train.aggregation.aggregate`, with float32 sums for half precision."""
    row, col = edge_index
    messages = x.index_select(0, row)
    if messages.dtype in (torch.float16, torch.bfloat16):
        messages = messages.float()
    if weight is not None:
        heads = 1 if weight.dim() == 1 else weight.size(1)
        factors = weight.to(messages.dtype).view(-1, heads, 1)
        messages = (messages.view(-1, heads, x.size(1) // heads) * factors).flatten(1)
    count = messages.new_zeros(num_dst).index_add(0, col, messages.new_ones(col.numel())).unsqueeze(1)
    if reduce == "max":
        # From minus infinity: gradients of maxima that equal the initial value would be shared with it.
        least = messages.new_full((num_dst, x.size(1)), -torch.inf)
        out = least.scatter_reduce(0, col.long().unsqueeze(1).expand_as(messages), messages, "amax")
        return out.masked_fill(count == 0, 0).to(x.dtype)
    out = messages.new_zeros(num_dst, x.size(1)).index_add(0, col, messages)
    return (out / count.clamp(min=1) if reduce == "mean" else out).to(x.dtype)
