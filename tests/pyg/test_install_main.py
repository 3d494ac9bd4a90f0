"""``python -m manyhop_pyg``: scripts that know PyG only, where neither pyg-lib nor torch-sparse is installed."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import manyhop_pyg.__main__ as command
from manyhop_pyg import uninstall

BLOCKED = ("pyg_lib", "torch_sparse", "torch_scatter", "torch_cluster", "torch_spline_conv")

# PyG's multi-GPU tutorial on two CPU processes: data through shared memory, seeds split by hand, evaluation on rank 0.
DDP = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    import torch.nn.functional as F
    import torch_geometric.typing
    from torch.nn.parallel import DistributedDataParallel
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.loader import HGTLoader, LinkNeighborLoader, NeighborLoader
    from torch_geometric.nn import GraphSAGE

    def run(rank, world_size, data):
        os.environ["MASTER_ADDR"] = "localhost"
        dist.init_process_group("gloo", rank=rank, world_size=world_size, init_method=sys.argv[1])
        assert not torch_geometric.typing.WITH_TORCH_SPARSE and not torch_geometric.typing.WITH_PYG_LIB
        assert data.x.is_shared()
        train_index = data.train_mask.nonzero().view(-1)
        train_index = train_index.split(train_index.size(0) // world_size)[rank]
        loader = NeighborLoader(data, [5, 5], input_nodes=train_index, batch_size=16, num_workers=1, shuffle=True,
                                drop_last=True, persistent_workers=True)
        if rank == 0:
            evaluate = NeighborLoader(data, [-1, -1], input_nodes=~data.train_mask, batch_size=50)
        torch.manual_seed(12345)
        model = DistributedDataParallel(GraphSAGE(8, 16, num_layers=2, out_channels=4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for epoch in range(2):
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
                optimizer.step()
            dist.barrier()
            if rank == 0:
                with torch.no_grad():
                    seen = sum(batch.batch_size for batch in evaluate if model.module(batch.x, batch.edge_index).any())
                print(f"rank 0 epoch {epoch}: {type(loader).__module__}, {seen} evaluated, mine {len(train_index)}")
        weights = torch.cat([p.detach().view(-1) for p in model.parameters()])
        first = weights.clone()
        dist.broadcast(first, 0)
        assert torch.equal(weights, first)
        del model  # as the last owner of the group, it may hang
        dist.destroy_process_group()

    if __name__ == "__main__":
        mask = torch.arange(200) < 160
        data = Data(x=torch.randn(200, 8), y=torch.randint(0, 4, (200,)), edge_index=torch.randint(0, 200, (2, 900)),
                    train_mask=mask)
        mp.spawn(run, args=(2, data), nprocs=2, join=True)
        links = LinkNeighborLoader(data, [3], edge_label_index=data.edge_index, neg_sampling="binary", batch_size=300)
        typed = HeteroData()
        typed["a"].x, typed["b"].x = torch.randn(50, 2), torch.randn(50, 2)
        typed["a", "to", "b"].edge_index = typed["b", "back", "a"].edge_index = torch.randint(0, 50, (2, 300))
        loaders = links, HGTLoader(typed, [5, 5], "a", batch_size=25), NeighborLoader(typed, [5, 5], "b", batch_size=10)
        print("batches", [len(list(loader)) for loader in loaders])
        print("argv", sys.argv, "path", sys.path[0])
"""

FAILS = """
    import sys
    from torch_geometric.loader import NeighborLoader

    def deeper():
        raise KeyError(NeighborLoader.__module__, sys.argv[1:])

    deeper()
"""


@pytest.fixture
def write(tmp_path):
    """Write files into a directory of their own; return it."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".py").write_text(textwrap.dedent(text))
        return tmp_path

    return write


def start(cwd, *args):
    """Run ``python -m manyhop_pyg`` where PyG finds nothing that samples."""
    block = cwd / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED}))\n")
    path = os.pathsep.join(filter(None, [str(block), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "default"}
    return subprocess.run(
        [sys.executable, "-m", "manyhop_pyg", *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


@pytest.mark.slow
def test_spawned_ddp_script(write):
    cwd = write(scripts__ddp=DDP)
    done = start(cwd, "scripts/ddp.py", f"file://{cwd}/rendezvous", "--flag")
    assert done.returncode == 0, done.stderr
    for epoch in range(2):
        assert f"rank 0 epoch {epoch}: manyhop_pyg.loaders.node, 40 evaluated, mine 80" in done.stdout
    assert "batches [3, 2, 5]" in done.stdout
    path = pathlib.Path(cwd, "scripts").resolve()
    assert f"argv ['scripts/ddp.py', 'file://{cwd}/rendezvous', '--flag'] path {path}" in done.stdout


@pytest.mark.slow
def test_a_failing_script(write):
    done = start(write(fails=FAILS), "fails.py", "-x", "1")
    assert done.returncode == 1
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if "~" not in line and "^" not in line]
    assert lines[-6:] == [
        "Traceback (most recent call last):",
        '  File "fails.py", line 8, in <module>',
        "    deeper()",
        '  File "fails.py", line 6, in deeper',
        "    raise KeyError(NeighborLoader.__module__, sys.argv[1:])",
        "KeyError: ('manyhop_pyg.loaders.node', ['-x', '1'])",
    ]
    assert "manyhop_pyg/__main__.py" not in done.stderr


@pytest.fixture
def main(monkeypatch):
    """Call the command in this process."""

    def main(*args):
        monkeypatch.setattr(sys, "argv", ["manyhop_pyg", *map(str, args)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        try:
            command.main()
        finally:
            uninstall()

    return main


def test_a_module(write, main, monkeypatch, capsys):
    cwd = write(
        eco_package____init__="",
        eco_package__train="""
            import sys
            from . import sibling
            if __name__ == "__main__":
                from torch_geometric.loader import NeighborLoader
                print(sys.argv[1:], __package__, NeighborLoader.__module__, sys.modules["__main__"].sibling is sibling)
                sys.exit(3)
        """,
        eco_package__sibling="",
    )
    monkeypatch.syspath_prepend(cwd)
    with pytest.raises(SystemExit) as end:
        main("-m", "eco_package.train", "-m", "a", "--", "b")
    assert end.value.code == 3
    assert capsys.readouterr().out == "['-m', 'a', '--', 'b'] eco_package manyhop_pyg.loaders.node True\n"


def test_a_script(write, main, capsys):
    cwd = write(script="import sys, sibling\nprint(sys.argv, sibling.__name__, __name__, __spec__)", sibling="")
    main(cwd / "script.py", "--help")
    captured = capsys.readouterr()
    assert captured.out == f"{[str(cwd / 'script.py'), '--help']} sibling __main__ None\n"
    assert (
        captured.err == f"manyhop_pyg: PyG's loaders and samplers in {cwd / 'script.py'} are replaced by manyhop's.\n"
    )


def test_a_syntax_error_shows_no_frames(write, main, capsys):
    with pytest.raises(SyntaxError) as error:
        main(write(wrong="a = (") / "wrong.py")
    traceback = error.tb
    while traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.excepthook(SyntaxError, error.value, traceback)
    assert re.sub(r'".*/', '"', capsys.readouterr().err).splitlines()[1:3] == ['  File "wrong.py", line 1', "    a = ("]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 2, "usage: python -m manyhop_pyg SCRIPT"),
        (["-m"], 2, "usage:"),
        (["-c", "1"], 2, "usage:"),
        (["nowhere.py"], 2, "can't open file"),
        (["--placement", "process", "nowhere.py"], 2, "argument --placement: invalid choice: 'process'"),
        (["-m", "eco_nowhere"], 1, "No module named eco_nowhere"),
        (["-m", "eco_nowhere.train"], 1, "No module named eco_nowhere.train"),
    ],
)
def test_usage(main, capsys, args, code, message):
    with pytest.raises(SystemExit) as end:
        main(*args)
    assert end.value.code == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_help(main, capsys):
    with pytest.raises(SystemExit):
        main("--help")
    assert "usage: python -m manyhop_pyg SCRIPT" in capsys.readouterr().out
