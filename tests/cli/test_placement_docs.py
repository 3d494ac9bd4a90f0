"""Every command and manifest on the pages about files, placement and clusters; tests/docs runs their programs."""

import gzip
import json
import re
import shlex
import shutil
import zlib
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import manyhop_pyg
from manyhop import files

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

DATA = Path(__file__).parents[2] / "docs" / "data"
PAGE = "\n".join((DATA / name).read_text() for name in ("placement.md", "convert.md", "cluster.md"))


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


LINES = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
COMMANDS = [line.partition(" #")[0].strip() for line in LINES if "pyg:Planetoid" not in line]  # which is downloaded


@pytest.fixture(autouse=True)
def _folder_of_the_page():
    """All files that the page names."""
    edge_index = torch.randint(0, 20, (2, 60))
    data = Data(x=torch.randn(20, 4), y=torch.zeros(20), edge_index=edge_index, train_mask=torch.arange(20) < 9)
    torch.save(data, "data.pt")
    manyhop_pyg.save(data, "graph")
    for name in ("features", "x", "x-0", "x-1"):
        files.write(f"{name}.npy", torch.randn(2000, 4))
    files.write("parts.npy", torch.arange(20) % 3)
    files.write("labels.safetensors", torch.zeros(20))
    files.write("tensors.safetensors", torch.randn(2000, 2))
    header = Path("tensors.safetensors").read_bytes().replace(b'{"data": ', b'{"x":    ')
    Path("tensors.safetensors").write_bytes(header)
    for name in ("edge_index", "edges"):
        files.write(f"{name}.npy", edge_index)
    Path("edges.csv").write_text("from,to,weight,time\n1,2,0.5,9\n")
    Path("nodes.csv").write_text("name,age\n2,30\n1,40\n")
    Path("x.raw.bin").write_bytes(bytes(16 * 20))
    Path("writes.csv").write_text("author,paper\nann,1\n")
    Path("cites.csv").write_text("paper,cited\n1,0\n")
    for k in range(2):
        parquet.write_table(arrow.table({"a": [k, 2], "b": [0, 1]}), f"edges-{k}.parquet")
    parquet.write_table(arrow.table({"x": [0.5] * 3, "y": [1] * 3}), "nodes.parquet")
    for name in ("arxiv", "products"):
        raw = Path("dataset", f"ogbn_{name}", "raw")
        raw.mkdir(parents=True)
        (raw / "edge.csv.gz").write_bytes(gzip.compress(b"0,1\n1,2\n"))
        (raw / "num-node-list.csv.gz").write_bytes(gzip.compress(b"3\n"))
        (raw / "node-label.csv.gz").write_bytes(gzip.compress(b"0\n1\n0\n"))
        split = raw.parent / "split" / "time"
        split.mkdir(parents=True)
        for k, part in enumerate(("train", "valid", "test")):
            (split / f"{part}.csv.gz").write_bytes(gzip.compress(f"{k}\n".encode()))


def test_there_are_commands():
    assert sum(command.startswith("manyhop plan") for command in COMMANDS) >= 4
    assert sum(command.startswith("manyhop convert") for command in COMMANDS) >= 7


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, run):
    program, *argv = shlex.split(command)
    assert program == "manyhop"
    if argv[-2:] == ["--partition", "4"]:
        pytest.importorskip("pymetis")
    if argv[0] == "convert":
        shutil.rmtree("graph")
    output = run(*argv).out
    assert files.open_graph("graph").edges if argv[0] == "convert" else "placement" in output


def test_manifests():
    raw, parts, graph = (json.loads(text) for text in blocks("json"))
    x = torch.zeros(raw["shape"])
    Path("x.bin").write_bytes(x.numpy().tobytes())
    assert raw["crc32"] == f"{zlib.crc32(x.numpy().tobytes()):08x}"
    Path("x.bin.json").write_text(json.dumps(raw))
    assert files.open("x.bin").read().equal(x)
    Path("0.raw").write_bytes(bytes(16))
    Path("1.raw").write_bytes(bytes(32))
    Path("x.json").write_text(json.dumps(parts))
    assert files.open("x.json").read().equal(torch.zeros(3, 2, dtype=torch.int64))
    Path("mine").mkdir()
    files.write("mine/x.npy", torch.zeros(4, 2))
    files.write("mine/edge_index.npy", torch.tensor([[0, 1, 2], [1, 2, 3]]))
    Path("mine/manyhop.json").write_text(json.dumps(graph))
    (batch,) = manyhop_pyg.NeighborLoader(manyhop_pyg.open("mine"), [1], batch_size=4)
    assert batch.edge_index.tolist() == [[0, 1, 2], [1, 2, 3]]
