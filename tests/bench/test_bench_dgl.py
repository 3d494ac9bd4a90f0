"""``manyhop bench dgl``: every contender runs, and the tables name them."""

import pytest
import torch

import manyhop_dgl  # noqa: F401  # makes dgl importable
from manyhop_bench.cli import main

pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity opt", "ignore:This process .* is multi-threaded")
def test_tables(monkeypatch, capsys, tmp_path):
    from manyhop_bench.dgl import command

    size = command.Size(name="tiny", scale=9, num_edges=4000, rounds=1, batches=1)
    monkeypatch.setattr(command, "QUICK", size)
    monkeypatch.setattr(command, "_BATCH", 64)
    monkeypatch.setattr(command, "_MIN_TURN", 0.0)
    assert main(["dgl", "--quick", "--threads", "1", "--output", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for name in ("manyhop beside DGL: R-MAT, 512 nodes, 4,000 edges", "LaborSampler 15-10-5", "DGL, workers"):
        assert name in text
    assert (tmp_path / "tiny.md").exists()
    assert (tmp_path / "tiny.svg").exists()


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity opt", "ignore:This process .* is multi-threaded")
def test_tables_of_a_gpu(monkeypatch):
    from manyhop_bench.common.report import as_text
    from manyhop_bench.dgl import gpu
    from manyhop_bench.dgl.graphs import Size

    monkeypatch.setattr(gpu, "_BATCH", 64)
    size = Size(name="tiny", scale=9, num_edges=4000, rounds=1, batches=2)
    text = as_text(gpu.run(size, ["--gpu"], device="cpu", workers=1))
    for name in ("DGL, 1 workers", "step of SAGE, 2 x 256", "step of GAT, 3 x 256", "DGL's time, PyG's = 1"):
        assert name in text


def test_arguments(capsys):
    with pytest.raises(SystemExit):
        main(["dgl", "--threads", "0"])
    assert "expected an integer of at least 1, got '0'" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["dgl", "--gpu"]) == 1
        assert "a CUDA device for --gpu" in capsys.readouterr().err


def test_graphs_are_skewed():
    from manyhop_bench.dgl.graphs import rmat

    g = rmat(10, 20_000)
    assert (g.num_nodes(), g.num_edges()) == (1024, 20_000)
    for degrees in (g.in_degrees(), g.out_degrees()):
        shares = degrees.sort(descending=True).values.double().cumsum(0) / 20_000
        assert shares[102] > 0.4  # a tenth of the nodes, two fifths of the edges
        assert torch.allclose(shares[-1], torch.ones((), dtype=torch.float64))
