"""What all tests share."""

import contextlib
import gc
import importlib.util
import os
import zlib
from collections.abc import Iterator

import pytest
import torch
from gpu_stand_ins import (  # noqa: F401
    driver,
    far,
    few_are_many,
    gpu_in_reach,
    host_memory,
    kernels_everywhere,
    out_of_reach,
    pinned_from,
    tape,
)

from manyhop.loading.pipeline import WorkerThreads
from manyhop.system import triton_compiler

# Kernels for GPUs need a newer triton than the oldest supported torch brings.
collect_ignore_glob = [] if triton_compiler.usable() else ["*gpu*", "*/test_masked_times.py"]

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # the kernels for GPUs run on the CPU; triton asks when imported
    if triton_compiler.usable():
        import fast_interpreter  # noqa: F401

with contextlib.suppress(ImportError):  # tests without such draws need no hypothesis
    import hypothesis

    # The same draws in every run; none is too slow: that is for the machine to say.
    hypothesis.settings.register_profile(
        "suite", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need what is missing. Check that ids are the same in all processes of pytest-xdist. Put files
    with slow tests first, mixed: some wait, some compute."""
    for item in items:
        marked = item.get_closest_marker("gpu") or item.get_closest_marker("multigpu")
        if not marked and str(getattr(getattr(item, "module", None), "DEVICE", "")).startswith("cuda"):
            item.add_marker(pytest.mark.gpu(interpreted=False))  # its kernels are interpreted where there is no GPU
        for needed, name in (1, "gpu"), (2, "multigpu"):
            if item.get_closest_marker(name) and torch.cuda.device_count() < needed:
                item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA device{'s' * (needed > 1)}"))
        packages = {package for mark in item.iter_markers("needs") for package in mark.args}
        if missing := sorted(package for package in packages if importlib.util.find_spec(package) is None):
            cuda = (torch.version.cuda or "13").split(".")[0]
            wheels = ", ".join(f"{package.replace('_', '-')}-cu{cuda}" for package in missing)
            item.add_marker(pytest.mark.skip(reason=f"not installed: {wheels}"))
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addresses:
        raise pytest.UsageError(f"Expected ids without addresses, got {addresses[0]}. Give the cases names.")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(
        key=lambda item: (item.path not in slow, zlib.crc32(item.path.name.encode()) if item.path in slow else 0)
    )


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """What is there when a file begins, all of torch above all, is no garbage: do not search it in each collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def patient() -> None:
    """Closing waits for its threads, not for two seconds: a thread may get no core for longer. None of them hangs."""
    WorkerThreads.close_seconds = 60.0


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Draws from torch's default generator are the same in every run, whatever the order of the tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        yield


@pytest.fixture(autouse=True)
def on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders choose the GPU where the process uses one: tests that are not about GPUs must not depend on others."""
    marks = [*request.node.iter_markers("gpu"), *request.node.iter_markers("multigpu")]
    if all("interpreted" in mark.kwargs for mark in marks):
        monkeypatch.setattr("manyhop.ranks.cuda.initialized", lambda: False)
