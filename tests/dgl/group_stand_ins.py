"""Stand-ins for the engines of a GPU in DGL's and GraphBolt's loaders: they sample on the CPU, in groups of batches."""

from types import SimpleNamespace

from gpu_stand_ins import CPU, stand_for_gpu

from manyhop.sampling import engines


def dgl_on_stand_in(monkeypatch):
    """Return a function by which DGL's loaders take the way of GPUs; its ``groups`` are the sizes of groups."""
    from manyhop_dgl import DataLoader

    groups = []

    def begin(self, requests, begin=engines.HostEngine.begin):
        groups.append(len(requests))
        return begin(self, requests)

    def switch(on):
        monkeypatch.setattr(DataLoader, "_samples_on_gpu", lambda self: on)
        return {}

    switch.groups = groups
    stand_for_gpu(monkeypatch.setattr)
    monkeypatch.setattr(engines.HostEngine, "begin", begin)
    return switch


class StandIn:
    """Begins by noting how many requests there are, and samples when they are finished."""

    def __init__(self, graph, spec, sizes):
        self.sampler, self.sizes = engines.engine_for(graph, spec, backend="cpu"), sizes

    def begin(self, requests):
        self.sizes.append(len(requests))
        return SimpleNamespace(finish=lambda: [self.sampler.sample(request) for request in requests])


def gb_on_stand_in(monkeypatch):
    """Let GraphBolt's loaders take the way of GPUs; return a list of the sizes of their groups."""
    import manyhop_dgl.graphbolt as gb
    from manyhop_graphbolt.loader import chain, loader

    sizes = []
    stand_for_gpu(monkeypatch.setattr)
    monkeypatch.setattr(loader, "gpu_of", lambda pipe: CPU)
    monkeypatch.setattr(chain, "placed_engine", lambda placed, spec: StandIn(placed.graph, spec, sizes))
    monkeypatch.setattr(gb.CopyTo, "step", lambda self, item: item)
    return sizes
