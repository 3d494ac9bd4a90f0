"""Padded blocks on a GPU: equal to those of the CPU, and steps on them captured."""

import pytest
import torch
from test_dgl_capture import LAYERS, Sage, make_step
from test_dgl_loader_tensors import graph, loader

import manyhop_dgl

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["plain", "typed", "ours"])
def test_a_gpu_makes_the_same_padded_blocks(kind):
    g = graph(kind)
    made = loader(kind, g, pad="auto", device="cuda", output="tensors")
    for ours, theirs in zip(made, loader(kind, g, pad="auto", output="tensors"), strict=True):
        for t in g.ntypes:
            assert torch.equal(ours.node[t].cpu(), theirs.node[t])
            assert torch.equal(ours.masks[t].cpu(), theirs.masks[t])
        for mine, block in zip(ours.blocks, theirs.blocks, strict=True):
            for t in block.ids:
                for name in ("columns", "sources", "ids", "masks"):
                    assert torch.equal(getattr(mine, name)[t].cpu(), getattr(block, name)[t])


@pytest.mark.parametrize("layer", LAYERS)
def test_captured_losses_are_those_of_the_eager_run(layer):
    results = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = Sage(LAYERS[layer]).cuda()
        step = make_step(model, torch.optim.Adam(model.parameters(), lr=0.02))
        step = manyhop_dgl.capture(step) if captured else step
        made = loader("plain", pad="auto", batch_size=8, device="cuda")
        results.append([step(batch).item() for _ in range(4) for batch in made])
    assert step.replayed >= 16
    assert torch.allclose(*map(torch.tensor, results), atol=1e-2)
