"""Each test of the DGL adapter begins without a seed of DGL's. Those of DGL's own interface need DGL."""

import pytest

from manyhop.system.finding import installed_version
from manyhop_dgl.samplers import arguments

# It has wheels for Python up to 3.12. (This folder is a package "dgl" to Python, so looking for that would find it.)
NEEDS_DGL = ["test_dgl_[!c]*", "test_dgl_ca*", "test_embeddings_in_graph.py", "test_gb_layers_gpu.py"]
NEEDS_DGL += ["test_lazy_blocks.py", "test_torch_graph*"]
collect_ignore_glob = [] if installed_version(("dgl",)) else NEEDS_DGL


@pytest.fixture(autouse=True)
def _unseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_seeded", None)
