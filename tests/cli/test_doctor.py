"""What the doctor finds: where packages are missing, broken or too old, and on GPUs that are made up."""

import importlib
import subprocess
import sys
from dataclasses import replace

import numba
import pytest
import torch

from manyhop.hints import pip_install
from manyhop.system import nvml
from manyhop_tools.cli import main
from manyhop_tools.doctor import gpu as doctor_gpu
from manyhop_tools.doctor import report
from manyhop_tools.doctor.gpu import Facts
from manyhop_tools.doctor.gpu_probe import Compiled, compile_one
from manyhop_tools.doctor.report import examine, installed_version

GIB = 2**30
WELL = Compiled(seconds=0.421, folder="/home/me/.triton/cache", kept=17, writable=True)


def finding(topic):
    (found,) = (f for f in examine().findings if f.topic == topic)
    return found


@pytest.fixture
def pretend(monkeypatch):
    """Pretend that a distribution has another version, or (None) is not installed."""

    def pretend(version, *distributions):
        def version_of(names):
            return version if set(names) & set(distributions) else installed_version(names)

        monkeypatch.setattr(report, "installed_version", version_of)

    return pretend


def test_doctor_is_content_here(run):
    out = run("doctor").out
    for topic in ("python", "torch", "numpy", "numba", "cores", "memory", "kernels", "GPUs", "pyg-lib", "DGL"):
        assert f"  {topic}  " in out
    assert out.rstrip().endswith("manyhop can work here.")


def test_missing_pyg_names_the_extra(pretend):
    pretend(None, "torch_geometric")
    assert finding("PyG").state == "missing"
    assert pip_install("pyg") in finding("PyG").text
    assert examine().healthy


@pytest.mark.parametrize("package", ["torch", "numpy", "numba"])
def test_missing_essentials_are_broken(pretend, package, capsys):
    pretend(None, package)
    assert finding(package).state == "broken"
    assert f"pip install '{package}" in finding(package).text
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert f"!!  {package}" in out
    assert "manyhop cannot work here" in out


@pytest.mark.parametrize(
    ("version", "state", "text"),
    [
        ("2.5.1", "broken", "manyhop needs 2.6 or later; pip install 'torch>=2.6'"),
        ("2.6.0", "ok", "2.6.0"),
        ("2.13.0+cpu", "ok", "2.13.0+cpu"),
        ("2.16.0a0+git", "ok", "(newer than 2.15, the newest that was tested)"),
        ("3.0", "ok", "(newer than 2.15, the newest that was tested)"),
    ],
)
def test_versions_of_torch(pretend, version, state, text):
    pretend(version, "torch")
    assert finding("torch").state == state
    assert finding("torch").text.endswith(text)


def test_a_package_that_cannot_be_imported(monkeypatch):
    real = importlib.import_module

    def import_module(name):
        if name == "numba":
            raise OSError("libsomething.so: not found")
        return real(name)

    monkeypatch.setattr(report.importlib, "import_module", import_module)
    assert finding("numba").state == "broken"
    assert "libsomething.so: not found" in finding("numba").text
    assert all(f.topic != "kernels" for f in examine().findings)


def test_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # what NUMBA_CACHE_DIR sets
    assert finding("kernels").text.startswith("not compiled yet")
    assert str(tmp_path) in finding("kernels").text
    (folder,) = tmp_path.glob("graph_*")
    (folder / "a.py311.nbi").touch()
    assert finding("kernels").text.startswith("1 compiled functions; cache: ")


# GPUs


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


def test_gpus_that_are_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides them" in texts(machine(names=(), compiled=None))["GPUs"][1]


def test_what_is_missing_names_the_extra_of_this_cuda():
    lines = texts(machine(triton=None, wholegraph=None, rmm=None, compiled=None, cuda="12.8"))
    for topic in ("triton", "pylibwholegraph", "rmm"):
        assert lines[topic][0] == "missing"
        assert pip_install("cu12") in lines[topic][1]
    assert "GPU kernels" not in lines


@pytest.mark.parametrize(
    ("change", "topic", "state", "text"),
    [
        ({"triton": "3.4.0"}, "triton", "broken", "manyhop needs 3.5 or later; install a torch that brings a newer"),
        ({"wholegraph": "26.2.1"}, "pylibwholegraph", "broken", "manyhop needs 26.8 or later; pip install"),
        ({"wholegraph_error": "OSError: libcudart.so"}, "pylibwholegraph", "broken", "is it the one for CUDA 13"),
        ({"raft_dask": None}, "cuGraph", "missing", "pip install --no-deps raft-dask-cu13"),
        ({"cugraph": None, "cuda": "12.8"}, "cuGraph", "missing", "pip install pylibcugraph-cu12"),
        ({"raft_dask": "26.8.0"}, "cuGraph", "broken", "have to be of one release"),
        ({"cugraph_error": "ImportError: libucp.so.0"}, "cuGraph", "broken", "libucp.so.0"),
        (
            {"compiled": RuntimeError("No C compiler.\nMore")},
            "GPU kernels",
            "broken",
            "RuntimeError: No C compiler.; in",
        ),
        ({"compiled": ValueError()}, "GPU kernels", "broken", "ValueError"),
        ({"compiled": replace(WELL, writable=False)}, "GPU kernels", "ok", "compiles anew; set TRITON_CACHE_DIR"),
        ({"settings": {}}, "GPU allocator", "missing", "set PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ({"settings": {"PYTORCH_CUDA_ALLOC_CONF": "a:64"}}, "GPU allocator", "ok", "with expandable_segments:True in"),
        ({"names": (), "compiled": None, "cuda": None, "torch": "2.13.0+cpu"}, "GPUs", "missing", "without CUDA"),
        ({"names": (), "compiled": None}, "GPUs", "missing", "its CUDA 13.0 may need a newer driver than 580.1"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(change, topic, state, text, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found, line = texts(machine(**change))[topic]
    assert (found, text in line) == (state, True), line


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
