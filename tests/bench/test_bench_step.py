"""``manyhop bench step``: every contender runs, and the tables name them."""

from manyhop_bench.cli import main
from manyhop_bench.step.planted import LEARNT


def test_tables(monkeypatch, capsys, tmp_path):
    from manyhop_bench.step import command

    classes = {"num_nodes": 200, "num_edges": 1500, "features": 16, "classes": 3, "channels": 8, "fanouts": (3, 2)}
    small = command.PlantedSize(**classes, batch_size=32, noise=0.5)
    sizes = command.Sizes(
        layer=command.LayerSize(num_dst=40, num_src=90, num_edges=120, channels=8),
        training=command.TrainingSize(
            num_nodes=256, num_edges=2000, features=8, channels=8, fanouts=(3, 2), batch_size=64, turn=5
        ),
        planted=small,
        learnt=small,
        seeds=2,
    )
    monkeypatch.setattr(command, "SIZES", {"cpu": sizes, "cuda": sizes})
    monkeypatch.setattr(command, "EPOCHS", 5)
    monkeypatch.setattr(command, "_MIN_TURN", 0.0)
    assert main(["step", "--rounds", "1", "--output", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for name in ("SAGE layer, TF32 products | PyG", "SAGE layer, bfloat16 | manyhop", "| capture(), accelerate() |"):
        assert name in text
    assert "| GATv2 layer, float32 | manyhop |" in text
    assert "| GCN layer of all nodes, float32 | PyG |" in text
    for name in ("torch.compile", "capture(), torch.compile", "the same without loading"):
        assert f"| GraphSAGE | {name} |" in text
    for name in ("eager", "accelerate(trim=True)", "capture(), accelerate()", "capture(), accelerate(trim=True), TF32"):
        assert f"| planted classes | {name} |" in text
    learnt = [
        line.split(" | ") for line in text.splitlines() if line.startswith(tuple(f"| {name} |" for name in LEARNT))
    ]
    assert len(learnt) == 4
    assert min(float(mean) for _, mean, _ in learnt) > 0.7
    assert (tmp_path / "step.md").read_text() == text
