"""Each behaviour is tested with the loaders of all adapters that have it."""

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("dgl", "pyg", "distributed", "pipeline")]

from harness import HARNESSES

from manyhop_dgl.samplers import arguments


@pytest.fixture(autouse=True)
def _unseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_seeded", None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Pass a harness of each adapter; ``@pytest.mark.without("toy", ...)`` leaves some out."""
    if "harness" in metafunc.fixturenames:
        left_out = {name for mark in metafunc.definition.iter_markers("without") for name in mark.args}
        found = [harness for name, harness in HARNESSES.items() if name not in left_out and harness.installed()]
        metafunc.parametrize("harness", found, ids=lambda harness: harness.name)
