"""Constants of machines: files, limits, and the records from which the built-in ones are."""

import dataclasses
import json
from pathlib import Path

import pytest

from manyhop.costs import (
    H100,
    H200,
    Cluster,
    CPUCosts,
    CuGraphCosts,
    Machine,
    Workload,
    expected_sizes,
    graph_sage,
    predict,
    read_machine,
    write_machine,
)
from manyhop.errors import InputError
from manyhop_bench.gpu.record import load
from manyhop_bench.machine.calibrate import calibrate

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
CPU = CPUCosts(batch_s=1e-4, edge_s=1e-8, copy=1e9)


def test_files(tmp_path):
    path = tmp_path / "machine.json"
    cugraph = CuGraphCosts(gpus=2, batch_s=1e-3, edge_s=1e-9)
    more = dataclasses.replace(H200, cpu=CPU, network=1e9, cugraph=cugraph)
    for machine in (H200, H100, Machine(name="mine", cpu=CPU), more):
        write_machine(machine, path)
        assert read_machine(path) == machine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "expected constants of a machine"),
        ({"version": 2}, "expected constants of a machine"),
        ({"more": 1}, "expected .* of Machine"),
        ({"cpu": {"batch_s": 1.0}}, "expected .* of CPUCosts"),
        ({"cugraph": {"gpus": 2}}, "expected .* of CuGraphCosts"),
        ({"gpu": 3}, "expected .* of GPUCosts, got int"),
        ({"name": 3}, "expected a text for 'name', got 3"),
        ({"network": True}, "expected a number for 'network'"),
        ({"network": "fast"}, "expected a number for 'network'"),
        ({"network": -1.0}, "positive number for the constant 'network'"),
        ({"network": 0.0}, "positive number for the constant 'network'"),
    ],
)
def test_damaged_files(tmp_path, change, message):
    path = tmp_path / "machine.json"
    write_machine(H200, path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        read_machine(path)


def test_constants_that_are_not_there():
    with pytest.raises(InputError, match="constants of a CPU"):
        H200.cpu_costs()
    with pytest.raises(InputError, match="constants of a GPU"):
        Machine(name="mine").gpu_costs()
    with pytest.raises(InputError, match=r"constants of cuGraph.* Run `manyhop bench machine"):
        dataclasses.replace(H200, cugraph=None).cugraph_costs()


def test_an_h200_is_that_of_the_records():
    """Every constant but some: autocast is of another day, products and memory are not in any record."""
    machine, kept = calibrate(load((BENCHMARKS / "gpu.json").read_text()), H200)
    captured = ["captured_layer_s", "captured_ddp_s"]
    assert kept == ["memory", "products", "half_products", *captured, "autocast_layer_s", "cugraph"]
    for name, value in dataclasses.asdict(machine.gpu).items():
        assert getattr(H200.gpu, name) == pytest.approx(value, rel=2e-3), name
    four, _ = calibrate(load((BENCHMARKS / "gpu-four.json").read_text()), H200)
    assert 0 < H200.gpu.autocast_layer_s < four.gpu.autocast_layer_s  # of a slower host
    assert H200.gpu.step_layer_s < four.gpu.step_layer_s
    assert H200.gpu.captured_ddp_s == pytest.approx(four.gpu.captured_ddp_s, rel=2e-3)
    assert H200.gpu.products == pytest.approx(2 * 45_000 * 256**2 / 0.145e-3, rel=2e-3)


def test_an_h100_is_what_its_record_says():
    machine, kept = calibrate(load((BENCHMARKS / "gpu-h100.json").read_text()), H100)
    assert {"memory", "products", "half_products", "captured_layer_s", "ddp_s"} <= set(kept)
    for name, value in dataclasses.asdict(machine.gpu).items():
        assert getattr(H100.gpu, name) == pytest.approx(value, rel=2e-3), name


def test_captured_layers_are_those_of_a_step_of_papers100m():
    work = Workload(
        sizes=expected_sizes(111_059_956, 1_615_685_872, (15, 10, 5), 1024), batch_size=1024, num_seeds=1024,
        row_bytes=256, features=128, half=True, captured=True,
    )  # fmt: skip
    assert graph_sage(work, H100.gpu).gpu == pytest.approx(0.62e-3, rel=0.02)


@pytest.mark.parametrize(
    ("gpus", "hidden", "half", "one", "several"),
    [
        (4, 256, False, 0.864e-3, 0.935e-3),
        (4, 512, False, 1.461e-3, 1.542e-3),
        (4, 256, True, 0.558e-3, 0.619e-3),
        (2, 256, True, 0.558e-3, 0.619e-3),
    ],
)
def test_a_captured_step_under_ddp_takes_as_much_longer_on_two_gpus_as_on_four(gpus, hidden, half, one, several):
    """docs/benchmarks-gpu.md, steps without loading on H200s: one of these rows decides the constant."""
    sizes = expected_sizes(111_059_956, 1_615_685_872, (15, 10, 5), 1024)
    work = Workload(
        sizes=sizes, batch_size=1024, num_seeds=1024, row_bytes=256, features=128, hidden=hidden, half=half,
        captured=True,
    )  # fmt: skip
    times = predict(work, Cluster(gpus_per_node=gpus), H200)
    assert times.all_reduce_s == pytest.approx(several - one, abs=13e-6)


def test_cugraph_from_loaders_of_two_sizes():
    """On most GPUs; their batches cost what any loader costs, a part of a call, and their edges."""
    (run,) = load((BENCHMARKS / "gpu.json").read_text())
    plain = dataclasses.replace(H200, cugraph=None)
    assert calibrate([run], plain)[0].cugraph is None
    assert calibrate([run], H200)[0].cugraph == H200.cugraph
    base = next(row for row in run.rows if row.part == "loader" and row.name == "manyhop" and row.gpus == 2)
    few, many = (
        dataclasses.replace(base, setting="sharded, cuGraph", edges=edges, seconds=[seconds])
        for edges, seconds in ((1e5, 1e-3), (2e5, 1.5e-3))
    )
    alone = dataclasses.replace(few, gpus=1, setting="cuGraph", seconds=[1.0])
    machine, _ = calibrate([dataclasses.replace(run, rows=[*run.rows, alone, few, many])], H200)
    gpu, found, batches = machine.gpu, machine.cugraph, base.extra["batches"]
    assert found.gpus == 2
    assert found.edge_s == pytest.approx(5e-9 * batches / (batches - 1))
    further = (1e-3 * batches - gpu.epoch_s * gpu.shared_host) / (batches - 1)
    assert found.batch_s == pytest.approx(further - 1e5 * found.edge_s - gpu.batch_s * gpu.shared_host)
    one_size, _ = calibrate([dataclasses.replace(run, rows=[*run.rows, few])], plain)
    assert one_size.cugraph is None
