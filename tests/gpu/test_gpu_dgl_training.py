"""DGL's models under DDP on two GPUs, with DGL's build for CPUs and features sharded over the GPUs by WholeGraph."""

import sys
from pathlib import Path

import pytest
import torch

import manyhop_dgl  # noqa: F401  # makes dgl importable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multigpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
pytest.importorskip("pylibwholegraph")
sys.path[:0] = [str(Path(__file__).parents[1] / "dgl")]

from torch_graph_training import MODELS, make_loader, train  # noqa: E402


def train_on_ranks():
    """Losses and parameters of each model on this rank."""
    import manyhop

    world = manyhop.init()
    device, found = torch.device("cuda", torch.cuda.current_device()), {}
    for name in MODELS:
        losses, model = train(
            name,
            device,
            wrap=lambda model: torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index]),
            ddp=True,
            placement="sharded",
        )
        found[name] = losses, [p.detach().cpu() for p in model.parameters()]
    placement = make_loader("SAGE", device, ddp=True, placement="sharded").placement
    return found, {choice.place for choice in placement.features}, world.rank


def test_ranks_train_on_sharded_features(run_on_gpus):
    (first, places, _), (second, _, _) = run_on_gpus(train_on_ranks)
    assert places == {"sharded"}
    for name in MODELS:
        losses, parameters = first[name]
        others, other_parameters = second[name]
        assert all(map(torch.equal, parameters, other_parameters))  # DDP: ranks stay together
        assert losses != others  # each has batches of its own
        alone, _ = train(name, epochs=1)
        assert losses[0] == pytest.approx(alone[0], rel=1e-2)  # batch 0 of the run of one process
        if name != "GraphBolt":  # whose sampler divides the items first
            assert others[0] == pytest.approx(alone_on(name, 1), rel=1e-2)


def alone_on(name, batch):
    """The loss of the model that has learned nothing on a batch of the run of one process."""
    torch.manual_seed(0)
    model = MODELS[name]()
    return [model(one).item() for one in make_loader(name, "cpu")][batch]
