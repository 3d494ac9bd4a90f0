"""Graphs in the memory of the GPU, for tests."""

from dataclasses import replace

import torch


def to_cuda(graph):
    """The same graph with its tables on the device."""

    def moved(csc):
        return replace(csc, **{n: x.cuda() for n, x in vars(csc).items() if isinstance(x, torch.Tensor)})

    return replace(graph, csc={t: moved(c) for t, c in graph.csc.items()})
