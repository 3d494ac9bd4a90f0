"""What the doctor says about GPUs that are not here: from facts that are made up."""

import subprocess
import sys

import pytest
import torch

from manyhop.hints import pip_install
from manyhop.system import nvml
from manyhop_tools.doctor import gpu as doctor_gpu
from manyhop_tools.doctor.gpu import Facts
from manyhop_tools.doctor.gpu_probe import Compiled, compile_one

GIB = 2**30
WELL = Compiled(seconds=0.421, folder="/home/me/.triton/cache", kept=17, writable=True)


def gpu(index):
    return nvml.GPU(
        index=index, uuid=f"GPU-{index}aa", name="NVIDIA H200", total=140 * GIB, free=139 * GIB, peers=(),
        pcie="PCIe 5 x16",
    )  # fmt: skip


def machine(gpus=1, **more):
    facts = {
        "driver": nvml.Driver(version="580.1", gpus=tuple(gpu(k) for k in range(gpus))),
        "torch": "2.11.0+cu130", "cuda": "13.0", "names": ("NVIDIA H200 (9.0)",) * gpus, "peers": True,
        "nccl": "2.28.9", "triton": "3.6.0", "wholegraph": "26.10.0", "rmm": "26.10.0",
        "cugraph": "26.10.0", "raft_dask": "26.10.0",
        "compiled": WELL,
        "settings": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    }  # fmt: skip
    return Facts(**{**facts, **more})


def texts(facts):
    return {finding.topic: (finding.state, finding.text) for finding in doctor_gpu.findings(facts)}


def test_one_gpu_all_well():
    lines = texts(machine())
    assert {state for state, _ in lines.values()} == {"ok"}
    assert lines["GPUs"][1] == "NVIDIA H200 (9.0); CUDA 13.0; driver 580.1"
    assert lines["GPU memory"][1] == "0: 139.0 GiB of 140.0 GiB free, PCIe 5 x16"
    assert lines["GPU kernels"][1] == "a small one compiles in 0.42 s; 17 are kept below /home/me/.triton/cache"
    assert "peer access" not in lines
    assert "NCCL" not in lines


def test_four_gpus():
    lines = texts(machine(4))
    assert lines["GPUs"][1].startswith("4 x NVIDIA H200 (9.0)")
    assert lines["peer access"] == ("ok", "all 4 GPUs read each other's memory")
    assert lines["NCCL"] == ("ok", "2.28.9")
    lines = texts(machine(4, peers=False, nccl=None))
    assert lines["peer access"][0] == lines["NCCL"][0] == "missing"


def test_no_gpu():
    lines = texts(Facts(torch="2.13.0", triton="3.8.0"))
    assert lines["GPUs"] == ("missing", "none here; manyhop samples on the CPU")
    assert lines["triton"] == ("ok", "3.8.0 (not needed without a GPU)")
    assert lines["pylibwholegraph"] == ("missing", "not installed (not needed without a GPU)")


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"cuda": None, "torch": "2.13.0+cpu"}, "torch 2.13.0+cpu was built without CUDA"),
        ({}, "its CUDA 13.0 may need a newer driver than 580.1"),
    ],
)
def test_gpus_that_torch_cannot_use(change, advice, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    state, text = texts(machine(2, names=(), compiled=None, **change))["GPUs"]
    assert state == "missing"
    assert text.startswith("2 x NVIDIA H200, but ")
    assert advice in text


def test_gpus_that_are_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides them" in texts(machine(names=(), compiled=None))["GPUs"][1]


def test_what_is_missing_names_the_extra_of_this_cuda():
    lines = texts(machine(triton=None, wholegraph=None, rmm=None, compiled=None, cuda="12.8"))
    for topic in ("triton", "pylibwholegraph", "rmm"):
        assert lines[topic][0] == "missing"
        assert pip_install("cu12") in lines[topic][1]
    assert "GPU kernels" not in lines


def test_wrong_versions_are_broken():
    lines = texts(machine(triton="3.4.0", wholegraph="26.2.1"))
    assert lines["triton"][0] == lines["pylibwholegraph"][0] == "broken"
    assert "manyhop needs 26.8 or later; pip install" in lines["pylibwholegraph"][1]
    assert "manyhop needs 3.5 or later; install a torch that brings a newer one" in lines["triton"][1]


def test_cugraph_without_dask():
    state, text = texts(machine(raft_dask=None))["cuGraph"]
    assert state == "missing"
    assert "raft-dask is not installed" in text
    assert "pip install --no-deps raft-dask-cu13" in text
    assert "pip install pylibcugraph-cu12" in texts(machine(cugraph=None, cuda="12.8"))["cuGraph"][1]
    state, text = texts(machine(raft_dask="26.8.0"))["cuGraph"]
    assert (state, "have to be of one release" in text) == ("broken", True)
    assert texts(machine(cugraph_error="ImportError: libucp.so.0"))["cuGraph"][0] == "broken"


def test_a_wholegraph_for_another_cuda():
    state, text = texts(machine(wholegraph_error="ImportError: libcudart.so.12: cannot open"))["pylibwholegraph"]
    assert state == "broken"
    assert "libcudart.so.12" in text
    assert "the one for CUDA 13.0, that of torch? " + pip_install("cu13") in text
    assert doctor_gpu._import_error("no.such.module").startswith("ModuleNotFoundError")
    assert doctor_gpu._import_error("json") is None


def test_kernels_that_do_not_compile():
    error = RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nmore")
    state, text = texts(machine(compiled=error))["GPU kernels"]
    assert state == "broken"
    assert "Failed to find C compiler" in text
    assert "install a C compiler, such as gcc" in text
    assert "more" not in text
    assert texts(machine(compiled=ValueError()))["GPU kernels"][0] == "broken"
    unwritable = Compiled(seconds=1.0, folder="/read-only", kept=0, writable=False)
    assert "every process compiles anew; set TRITON_CACHE_DIR" in texts(machine(compiled=unwritable))["GPU kernels"][1]


def test_settings_of_the_allocator():
    state, text = texts(machine(settings={}))["GPU allocator"]
    assert state == "missing"
    assert "set PYTORCH_ALLOC_CONF=expandable_segments:True" in text
    state, text = texts(machine(settings={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}))["GPU allocator"]
    assert state == "ok"
    assert "as you set it; with expandable_segments:True in it" in text


def test_looking_here():
    """Without a GPU nothing is compiled; with one, all lines are good enough to work."""
    facts = doctor_gpu.look()
    assert bool(facts.names) == torch.cuda.is_available()
    assert facts.torch == torch.__version__
    assert all(finding.state != "broken" for finding in doctor_gpu.findings(facts))


# The names up to the first that is none, as CUDA does.
@pytest.mark.parametrize(("names", "shown"), [("2,0", [2, 0]), ("GPU-1aa", [1]), ("1,7,0", [1]), ("", [])])
def test_what_cuda_shows(names, shown, monkeypatch):
    gpus = tuple(gpu(k) for k in range(3))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert nvml.visible(gpus) == tuple(gpus[k] for k in shown)


def test_the_probe():
    """On a GPU, or in triton's interpreter."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result = compile_one(device)
    assert result.seconds > 0
    assert result.folder


def test_the_doctor_needs_no_triton():
    code = "import sys; sys.modules['triton'] = None; from manyhop_tools.doctor.gpu import findings, look; "
    code += "print(len(findings(look())))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) >= 3
