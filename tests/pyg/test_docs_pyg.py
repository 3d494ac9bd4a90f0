"""The examples in PyG's own documentation of its loaders, run with one import changed, and with none (``install``)."""

import contextlib
import inspect
import re
import textwrap

import pytest
import torch
import torch_geometric.datasets
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.mixin import MultithreadingMixin

import manyhop_pyg

DOCUMENTED = {
    "NeighborLoader": torch_geometric.loader.NeighborLoader,
    "LinkNeighborLoader": torch_geometric.loader.LinkNeighborLoader,
    "HGTLoader": torch_geometric.loader.HGTLoader,
    "ImbalancedSampler": torch_geometric.loader.ImbalancedSampler,
    "AffinityMixin": torch_geometric.loader.AffinityMixin,
    "MultithreadingMixin": MultithreadingMixin.enable_multithreading,
}
OURS = ("NeighborLoader", "LinkNeighborLoader", "HGTLoader")

# What makes an excerpt a program: PyG's ellipses and slips of the pen, and numbers for a small machine.
COMPLETED = {
    r"\(data, \.\.\.\)": "(data, [4])",
    r",\s*\.\.\.\)": ")",
    r"NeigborLoader\(data, ": "NeighborLoader(data, [4], batch_size=64, ",
    r"num_workers=3": "num_workers=2",
    r"loader_cores=\[0, 1, 2\]": "loader_cores=cores",
    r"enable_multithreading\(10\)": "enable_multithreading(1)",
    r"ImbalancedSampler\(data\.y\)": "ImbalancedSampler(data.y[data.train_mask])",
    r"torch\.set_start_method\('spawn'\)": "pass",
    r"(sampled_hetero_data = .*\n)print\(sampled_data\.batch_size\)": r"\1print(sampled_hetero_data)",
}


def cora():
    g = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(600, 8, generator=g),
        y=torch.randint(0, 7, (600,), generator=g),
        edge_index=torch.randint(0, 600, (2, 3000), generator=g),
        train_mask=torch.arange(600) < 140,
    )


def mag():
    g = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.randn(500, 8, generator=g)
    data["paper"].train_mask = torch.arange(500) < 200
    data["author"].x = torch.randn(300, 4, generator=g)
    for src, rel, dst in [
        ("author", "writes", "paper"),
        ("paper", "rev_writes", "author"),
        ("paper", "cites", "paper"),
    ]:
        ends = [torch.randint(0, data[end].num_nodes, (1500,), generator=g) for end in (src, dst)]
        data[src, rel, dst].edge_index = torch.stack(ends)
    return data


def blocks():
    """The code blocks of PyG's docstrings that are about loaders of ours."""
    for name, documented in DOCUMENTED.items():
        text = inspect.cleandoc(documented.__doc__)
        found = re.findall(r"^( *)\.\. code-block:: python\n((?:\1 +.*\n|\n)+)", f"{text}\n", re.MULTILINE)
        for i, (_, block) in enumerate(found):
            code = re.sub(r"^>>> .*\n(^ .*\n)*", "", textwrap.dedent(block).strip() + "\n", flags=re.MULTILINE)
            if any(re.search(rf"\b{ours}\b|Neigbor", code) for ours in OURS):
                yield pytest.param(name, code, id=f"{name}-{i}")


BLOCKS = list(blocks())


def test_all_examples_are_found():
    assert {p.id for p in BLOCKS} >= {
        "NeighborLoader-0", "NeighborLoader-1", "NeighborLoader-2", "LinkNeighborLoader-0", "LinkNeighborLoader-1",
        "HGTLoader-0", "ImbalancedSampler-1", "ImbalancedSampler-2", "AffinityMixin-0", "MultithreadingMixin-0",
    }  # fmt: skip


@contextlib.contextmanager
def installed():
    manyhop_pyg.install()
    try:
        yield
    finally:
        manyhop_pyg.uninstall()


@pytest.mark.parametrize("how", ["import", "install"])
@pytest.mark.parametrize(("name", "code"), BLOCKS)
def test_example(name, code, how, monkeypatch):
    for wrong, right in COMPLETED.items():
        code = re.sub(wrong, right, code)
    if how == "import":
        kept = r"from torch_geometric.loader import (?:(\w+), )?(\w+)\n"
        code = re.sub(kept, lambda m: "".join(_import(n) for n in m.groups() if n), code)
    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", lambda path, name: [cora()])
    monkeypatch.setattr(torch_geometric.datasets, "OGB_MAG", lambda path: [mag()])
    printed = []
    names = {"path": None, "data": cora(), "torch": torch, "cores": [0, 0], "__name__": "__main__",
             "print": printed.append}  # fmt: skip
    with installed() if how == "install" else contextlib.nullcontext():
        # What the excerpts take for granted.
        exec("from torch_geometric.loader import NeighborLoader, LinkNeighborLoader", names)
        if how == "import":
            names |= {ours: getattr(manyhop_pyg, ours) for ours in OURS}
        exec(code, names)
        made = names.get("loader")
        if made is not None:
            assert type(made).__module__.startswith("manyhop_pyg")
            batch = next(iter(made))
    if name in ("NeighborLoader", "LinkNeighborLoader", "HGTLoader"):
        assert len(printed) == 1
    if "128" in code and name == "NeighborLoader":
        assert printed == [128]
    if name == "LinkNeighborLoader":
        assert printed[0].edge_label_index.shape == (2, 128)
        assert ("edge_label" in printed[0]) == ("edge_label=" in code)
    if name == "HGTLoader":
        assert printed[0]["paper"].batch_size == 128
        assert set(printed[0].node_types) == {"paper", "author"}
    if name == "ImbalancedSampler":
        assert batch.batch_size == 64
        assert (batch.n_id[:64] < 140).all()


def _import(name):
    return f"from {'manyhop_pyg' if hasattr(manyhop_pyg, name) else 'torch_geometric.loader'} import {name}\n"
