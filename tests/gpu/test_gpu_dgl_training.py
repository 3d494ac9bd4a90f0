"""DGL's models under DDP on two GPUs, with DGL's build for CPUs and features sharded over the GPUs by WholeGraph."""

import faulthandler
import itertools
import sys
import time
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

LIMIT = 100.0  # seconds for all models, kernels compiled


def train_on_ranks():
    """Losses and parameters of each model on this rank, and where the features of the first are."""
    import manyhop

    faulthandler.dump_traceback_later(0.9 * LIMIT, exit=True)
    world = manyhop.init()
    device, found = torch.device("cuda", torch.cuda.current_device()), {}
    for name in MODELS:
        begin = time.perf_counter()
        losses, model = train(
            name,
            device,
            epochs=1,
            wrap=lambda model: torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index]),
            ddp=True,
            placement="sharded",
        )
        found[name] = losses, [p.detach().cpu() for p in model.parameters()]
        print(f"rank {world.rank}: {name} {time.perf_counter() - begin:.1f} s", flush=True)
    placement = make_loader("SAGE", device, ddp=True, placement="sharded").placement
    faulthandler.cancel_dump_traceback_later()
    return found, {choice.place for choice in placement.features}


@pytest.fixture(scope="module")
def ranks(gpu_launcher):
    """What both ranks returned."""
    return gpu_launcher.run(train_on_ranks, timeout=LIMIT, fresh=True)


def test_features_are_sharded(ranks):
    assert [places for _, places in ranks] == [{"sharded"}] * 2


@pytest.mark.parametrize("name", MODELS)
def test_ranks_train(ranks, name):
    (losses, parameters), (others, other_parameters) = (found[name] for found, _ in ranks)
    assert all(map(torch.equal, parameters, other_parameters))  # DDP: ranks stay together
    assert losses != others  # each has batches of its own
    assert [losses[0], others[0]] == pytest.approx(first_losses(name), rel=1e-2)


def first_losses(name):
    """Losses of the model that has learned nothing, on the first two batches of a run of one process."""
    torch.manual_seed(0)
    model = MODELS[name]()
    return [model(batch).item() for batch in itertools.islice(make_loader(name, "cpu"), 2)]
