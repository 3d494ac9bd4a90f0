"""``accelerate``: unchanged PyG models aggregate by segments of sorted edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import torch

from manyhop.errors import InputError

M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True, kw_only=True)
class Accelerated:
    """Which layers of a model :func:`accelerate` reached."""

    reached: list[str] = field(default_factory=list)
    """Names of layers, as in ``model.named_modules()``."""

    others: dict[str, str] = field(default_factory=dict)
    """Names of the other layers that pass messages, and why they are left as they are."""


def accelerate(model: torch.nn.Module) -> Accelerated:
    """Let the layers of a PyG model aggregate by segments of sorted edges, without atomics.

    Reaches ``SAGEConv``, ``GCNConv``, ``GINConv`` and ``GraphConv`` with sums, means and maxima, ``GATConv`` and
    ``GATv2Conv``. Parameters, state dicts and results (within rounding) stay as they are; gradients become
    deterministic. Subclasses of these layers and all other layers are left alone. A layer runs PyG's own code where it
    is called with anything but plain edges ``[2, num_edges]`` and rows ``[num_nodes, num_channels]``, with PyG's hooks,
    or to be explained.

    Batches of manyhop's loaders are known to be sorted; other edges are sorted once per call of the model.

    Args:
        model: is changed in place.

    Returns:
        The layers reached, and the others with a reason.

    Raises:
        InputError: ``model`` is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"Expected a torch.nn.Module, got a {type(model).__name__}. Pass the model.")
    from torch_geometric.nn import MessagePassing

    from manyhop_pyg.training.convs import PassEdges
    from manyhop_pyg.training.layers import obstacle, replace

    edges = PassEdges()
    found = Accelerated()
    for name, module in model.named_modules():
        if isinstance(module, MessagePassing):
            reason = obstacle(module)
            if reason is None:
                replace(module, edges)
                found.reached.append(name)
            else:
                found.others[name] = reason
    if found.reached:
        model.register_forward_pre_hook(edges.begin)
        model.register_forward_hook(edges.end, always_call=True)
    return found
