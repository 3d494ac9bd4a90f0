"""What ranks know about their GPUs: from facts that are made up."""

import logging
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from manyhop.errors import InputError
from manyhop.ranks import cuda
from manyhop.ranks.world import World
from manyhop.system import allocator, nvml


def facts(gpu, peers=(), **more):
    memory = {"gpu_memory": 100, "host_memory": 1000, "pinnable": 800}
    return {"gpu": gpu, **memory, "peers": list(peers), "cugraph": True, "wholegraph": True, **more}


def test_the_least_counts():
    ranks = World(0, (0, 0, 1, 1))
    every = [
        facts("a", "b"), facts("b", "a", gpu_memory=70), facts("c", "d", host_memory=900), facts("d", "c", pinnable=50),
    ]  # fmt: skip
    hardware = cuda.combine(every, ranks, together=True)
    assert (hardware.gpu_memory, hardware.host_memory, hardware.pinnable) == (70, 900, 50)
    assert (hardware.gpus_per_node, hardware.num_nodes) == (2, 2)
    assert hardware.peer_access
    assert hardware.wholegraph
    assert hardware.together
    every[3] = facts("d", (), wholegraph=False)
    hardware = cuda.combine(every, ranks, together=True)
    assert not hardware.peer_access
    assert not hardware.wholegraph


def test_one_rank_has_no_peers_to_lack():
    assert cuda.combine([facts("a")], World(0, (0,)), together=False).peer_access


def test_every_rank_needs_a_gpu_of_its_own():
    with pytest.raises(InputError, match=r"same one for ranks 1 and 2\..*torch\.cuda\.set_device"):
        cuda.combine([facts("a"), facts("b"), facts("b")], World(0, (0, 1, 1)), together=True)
    with pytest.raises(InputError, match="got none for rank 1"):
        cuda.check_own_gpus(["a", ""], World(0, (0, 0)))
    # The same name on two nodes is no contradiction: virtual machines may have such GPUs.
    assert cuda.combine([facts("a"), facts("a")], World(0, (0, 1)), together=True).num_nodes == 2


def test_a_share_of_the_memory_is_never_page_locked(monkeypatch):
    here = facts("a")
    del here["pinnable"]
    monkeypatch.setattr(cuda, "facts", lambda device: dict(here))
    hardware = cuda.hardware(torch.device("cuda"), together=False, timeout=1.0, in_memory=500, pinned=7)
    assert (hardware.host_memory, hardware.pinnable) == (1000, 1200 + 7)


@pytest.mark.gpu
@pytest.mark.whole_gpu
def test_a_real_gpu():
    hardware = cuda.hardware(torch.device("cuda"), together=False, timeout=1.0)
    free, total = torch.cuda.mem_get_info()
    assert 0.9 * free <= hardware.gpu_memory <= total
    taken = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    del taken  # torch keeps it: it counts as free
    assert abs(cuda.free_memory(0) - hardware.gpu_memory) < 1 << 26
    driver = nvml.driver()
    assert driver is not None
    assert cuda.uuid_of(0) in {gpu.uuid for gpu in driver.gpus}
    assert cuda.initialized()


def test_settings_of_the_user_stay():
    for name in allocator.VARIABLES:
        environ = {name: "max_split_size_mb:64"}
        assert not allocator.configure(environ, started=False)
        assert not allocator.configure(environ, started=True)
        assert environ == {name: "max_split_size_mb:64"}


def test_segments_grow_unless_it_is_too_late(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    environ = {}
    assert not allocator.configure(environ, started=False)
    assert list(environ.values()) == ["expandable_segments:True"]
    environ = {}
    assert allocator.configure(environ, started=True)
    assert environ == {}
    monkeypatch.setattr(platform, "release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    assert not allocator.configure(environ, started=False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert not allocator.configure(environ, started=False)
    assert environ == {}


def test_too_late_is_logged_once(monkeypatch, caplog):
    for name in allocator.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with caplog.at_level(logging.WARNING, "manyhop"):
        allocator.configure_at_import()
    assert len(caplog.records) == 1
    assert "set PYTORCH_ALLOC_CONF=expandable_segments:True" in caplog.text
    assert not set(allocator.VARIABLES) & set(os.environ)


@pytest.mark.skipif(sys.platform != "linux", reason="segments grow on Linux")
def test_importing_manyhop_sets_it():
    """Also after torch, which has understood it then."""
    environ = {name: value for name, value in os.environ.items() if name not in allocator.VARIABLES}
    code = "import torch, manyhop, os; print(os.environ['PYTORCH_ALLOC_CONF'], torch.cuda.is_initialized())"
    if hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        code = code.replace("os.environ['PYTORCH_ALLOC_CONF']", "torch._C._accelerator_getAllocatorSettings()")
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=environ)
    assert (run.stdout.strip(), run.stderr) == ("expandable_segments:True False", "")


@pytest.mark.gpu
def test_memory_is_in_segments_that_grow():
    environ = {name: value for name, value in os.environ.items() if name not in allocator.VARIABLES}
    code = "import torch, manyhop; torch.zeros(9, device='cuda'); "
    code += "print({segment['is_expandable'] for segment in torch.cuda.memory_snapshot()})"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=environ)
    assert (run.stdout.strip(), run.stderr) == ("{True}", "")


def test_the_driver_is_asked_and_what_it_does_not_know_is_left_out(monkeypatch):
    class NVMLError(Exception):
        pass

    def raises(*arguments):
        raise NVMLError

    handles = ["a", "b"]
    stand_in = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_P2P_CAPS_INDEX_READ=(0,),  # as in pynvml
        NVML_P2P_STATUS_OK=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: handles[index] if index < 2 else raises(),
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetName=lambda handle: "NVIDIA H100",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80, free=79),
        nvmlDeviceGetP2PStatus=lambda a, b, kind: 0 if (a, kind) == ("a", 0) else raises(),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 5 if handle == "a" else raises(),
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 16,
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
    )
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    found = nvml.driver()
    assert (found.version, [gpu.uuid for gpu in found.gpus]) == ("580.1", ["GPU-a", "GPU-b"])
    assert [gpu.peers for gpu in found.gpus] == [("GPU-b",), ()]
    assert [gpu.pcie for gpu in found.gpus] == ["PCIe 5 x16", None]
    assert {(gpu.total, gpu.free, gpu.capability) for gpu in found.gpus} == {(80, 79, (9, 0))}
    stand_in.nvmlInit = raises
    assert nvml.driver() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.driver() is None
