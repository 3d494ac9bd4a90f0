"""``manyhop convert`` of PyG's data sets by name, and of files at addresses."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.datasets import KarateClub

import manyhop_pyg
from manyhop import files

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")


def test_data_sets_by_name(convert):
    convert("pyg:KarateClub", "g")
    data, opened = KarateClub()[0], manyhop_pyg.open("g")
    assert opened.train_mask.equal(data.train_mask)
    assert sorted(opened.edge_index.T.tolist()) == sorted(data.edge_index.T.tolist())
    options = [f"--dataset-arg={text}" for text in ("num_graphs=1", "avg_num_nodes=20", "task=node", "num_channels=3")]
    convert("pyg:FakeDataset", "f", *options)
    assert manyhop_pyg.open("f").x.shape[1] == 3
    for argv, message in [
        (("pyg:KarateClob",), "got 'KarateClob'. Did you mean KarateClub"),
        (("pyg:download_url",), "Expected a class of torch_geometric.datasets"),
        (("pyg:Planetoid",), "missing a required argument: 'root'. Pass what it takes by --dataset-arg"),
        (("pyg:FakeDataset", "--dataset-arg", "num_graphs=2"), "expected one graph, got 2"),
        (("pyg:FakeDataset", "--dataset-arg", "graphs"), "--dataset-arg NAME=VALUE, each name once"),
        (("pyg:KarateClub", "--ids", "map"), "--ids has no meaning"),
        (("edges.csv", "--dataset-arg", "a=b"), "--dataset-arg has no meaning"),
    ]:
        convert(*argv, "bad", fails=message)


@pytest.fixture(params=["memory", "s3"])
def bucket(request, monkeypatch):
    """A file system with an empty bucket: in memory, or of a local object server."""
    running = None
    if request.param == "s3":
        pytest.importorskip("s3fs", reason="s3fs is not installed (pip install s3fs 'moto[server]')")
        server = pytest.importorskip("moto.server", reason="moto is not installed (pip install s3fs 'moto[server]')")
        running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        url = "http://{}:{}".format(*running.get_host_and_port())
        options = {"key": "key", "secret": "secret", "endpoint_url": url, "skip_instance_cache": True}
        monkeypatch.setitem(fsspec.config.conf, "s3", options)
    files = fsspec.filesystem(request.param)
    files.mkdir("bucket")
    yield files
    files.rm("bucket", recursive=True)
    if running is not None:
        running.stop()


def test_files_at_addresses(bucket, tmp_path, convert):
    bucket.pipe("bucket/a/e.csv", b"p,q\n1,0\n")
    bucket.pipe("bucket/b/e.csv", b"p,q\n2,1\n")
    x = np.arange(6, dtype=np.float32)
    bucket.pipe("bucket/x.bin", x.tobytes())
    bucket.pipe("bucket/y.bin", x.tobytes())
    bucket.pipe("bucket/y.bin.json", b'{"shape": [3, 2], "dtype": "float32"}')
    bucket.pipe("bucket/n.csv", b"id,z\n0,5\n2,7\n1,6\n")
    files.write("p.npy", torch.tensor([1, 0, 0]))
    bucket.put("p.npy", "bucket/p.npy")
    files.write("two.safetensors", torch.tensor([1.0, 2, 3]))
    bucket.put("two.safetensors", "bucket/two.safetensors")
    at = bucket.unstrip_protocol("bucket")
    options = ["--raw", f"{at}/x.bin=float32,2", "--node-tensor", f"x={at}/x.bin", "--node-tensor", f"y={at}/y.bin"]
    options += ["--node-tensor", f"w={at}/two.safetensors:data", "--nodes", f"{at}/n.csv", "--partition", f"{at}/p.npy"]
    printed = convert(f"{at}/a/e.csv", f"{at}/b/e.csv", "g", *options)
    assert f"{at}/x.bin: is copied" in printed.err
    data = manyhop_pyg.open("g")
    assert np.load(Path("g") / "_N.ids.npy").tolist() == [1, 2, 0]
    assert data.edge_index.tolist() == [[1, 0], [0, 2]]
    assert data.x.tolist() == data.y.tolist() == [[2, 3], [4, 5], [0, 1]]
    assert (data.w.tolist(), data.z.tolist()) == ([2, 3, 1], [6, 7, 5])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "p.npy", "two.safetensors"]


def test_folders_at_addresses(bucket, convert):
    for name, text in [("edge", "0,1\n1,2\n"), ("num-node-list", "3\n"), ("node-label", "4\n5\n6\n")]:
        bucket.pipe(f"bucket/set/raw/{name}.csv.gz", gzip.compress(text.encode()))
    for k, name in enumerate(("train", "valid", "test")):
        bucket.pipe(f"bucket/set/split/time/{name}.csv.gz", gzip.compress(f"{k}\n".encode()))
    convert(bucket.unstrip_protocol("bucket/set"), "g")
    data = manyhop_pyg.open("g")
    assert (data.y.tolist(), data.val_mask.tolist()) == ([4, 5, 6], [False, True, False])


@pytest.mark.parametrize("bucket", ["memory"], indirect=True)
def test_addresses_that_are_refused(tmp_path, bucket, convert):
    bucket.pipe("bucket/set/raw/../x.csv", b"")
    for argv, message in [
        (("memory://bucket/none.csv", "g"), "memory://bucket/none.csv: cannot be read: FileNotFoundError"),
        (("nothing://bucket/e.csv", "g"), "Protocol not known: nothing"),
        (("e.csv", "memory://bucket/g"), "Expected a folder of this machine as the target"),
        (("memory://bucket/set", "g"), "expected names without '..'"),
    ]:
        convert(*argv, fails=message)
    assert not any(tmp_path.iterdir())
