"""The models of DGL's examples on CUDA with DGL's build for CPUs: the losses of the CPU, AMP, compiled layers."""

import dgl
import pytest
import test_torch_graph_compile
import torch
from test_torch_graph_compile import LAYERS, check
from torch_graph_training import MODELS, train
from torch_graphs import block

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _own_cuda():
    if dgl.ndarray.gpu(0).exist:
        pytest.skip("this build of DGL has CUDA of its own")


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_the_cpu(name):
    assert train(name, "cuda")[0] == pytest.approx(train(name)[0], rel=1e-2)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "GraphBolt"])
def test_int32(name):
    assert train(name, "cuda", idtype=torch.int32)[0] == pytest.approx(train(name, "cuda")[0], rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_amp(name, dtype):
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10) if dtype == torch.float16 else None
    found, _ = train(name, "cuda", dtype=dtype, scaler=scaler)
    assert found == pytest.approx(train(name, "cuda")[0], rel=0.2)
    if scaler is not None:
        assert scaler.get_scale() == 2.0**10  # no gradient overflowed


@test_torch_graph_compile.pytestmark
@pytest.mark.parametrize("name", LAYERS)
def test_graph_breaks(name):
    print(name, check(name, block().to("cuda"), torch.rand(60, 6, device="cuda"), most=12))
