"""The cost model, term by term."""

import dataclasses

import pytest

from manyhop.costs import (
    H200,
    MERGED,
    BatchSizes,
    Cluster,
    CPUCosts,
    CuGraphCosts,
    GPUCosts,
    Machine,
    Workload,
    cpu_batch_s,
    expected_sizes,
    graph_sage,
    predict,
)
from manyhop.errors import InputError

SIZES = BatchSizes(fanouts=(3, 2), nodes=(10.0, 30.0, 60.0), edges=(30.0, 60.0), hits=(0,) * 6 + (0.5, 1), source="")
WORK = Workload(sizes=SIZES, batch_size=10, num_seeds=1000, row_bytes=400, features=100, step_s=1.0)
ROWS = 100 * 400  # bytes of a batch
CPU = CPUCosts(batch_s=2.0, edge_s=0.5, copy=ROWS / 8)
GPU = GPUCosts(
    memory=1, copy=ROWS / 0.93, reads=1000.0, pcie=ROWS / 6, peer=ROWS / 4, products=1e9, half_products=1e10,
    launch_s=16.0, hop_s=8.0, peer_hop_s=80.0, edge_reads=100.0, layer_s=0.0, captured_layer_s=4.0,
    captured_ddp_s=0.375, epoch_s=9.0, batch_s=3.0, padded_batch_s=0.75, spread_batch_s=0.5, step_layer_s=0.5,
    autocast_layer_s=0.25, ddp_s=0.125, exchange_s=7.0, shared_host=2.0,
)  # fmt: skip
MACHINE = Machine(name="", gpu=GPU, network=ROWS / 10, message_s=0.01)
SAMPLE = (16 + 2 * 8) / MERGED + 90 * 100 / 1000
"""Seconds of sampling on the GPU: a share of a launch, and reads."""


def loading(work=WORK, machine=MACHINE, **cluster):
    return predict(work, Cluster(**cluster), machine).loading


def test_places_of_features():
    assert loading() == {"host": 3, "gpu": SAMPLE + 1, "nvlink": 0, "pcie": 0, "network": 0}
    sharded = loading(gpus_per_node=4, features="sharded")
    assert sharded["nvlink"] == pytest.approx(4 * 3 / 4)
    assert sharded["gpu"] == pytest.approx(SAMPLE + 3)  # the gather waits for the links
    assert sharded["host"] == 2 * (3 + 0.5)  # several ranks share the host
    assert loading(features="sharded") == loading()
    pinned = loading(features="pinned", cache=0.2)
    assert pinned["pcie"] == pytest.approx(6 / 2)
    spread = loading(num_nodes=2, gpus_per_node=2, features="distributed")
    assert spread["nvlink"] == pytest.approx(4 * 1 / 4)
    assert spread["network"] == pytest.approx(10 * 2 / 4 + 2 * 0.01)
    assert spread["gpu"] == pytest.approx(SAMPLE + 1 + 0.93)  # rows are packed for others, too
    assert spread["host"] == pytest.approx(2 * (3 + 7))


def test_places_of_the_topology():
    assert loading(topology="sharded", gpus_per_node=2)["gpu"] == pytest.approx(SAMPLE + 1 + 2 * 80 / MERGED)
    pinned = loading(topology="pinned")
    assert pinned["pcie"] == pytest.approx(90 * 64 * 6 / ROWS)
    assert pinned["gpu"] == pytest.approx(SAMPLE + 1 + pinned["pcie"])
    with pytest.raises(InputError, match="constants of a CPU"):
        loading(topology="host", features="host")
    both = dataclasses.replace(MACHINE, cpu=CPU)
    assert loading(machine=both, topology="host", features="host", threads=2)["cpu"] == (2 + 45 + 8) / 2
    assert loading(machine=both, features="host")["cpu"] == 2 + 8
    assert loading(machine=both, topology="host", features="host")["pcie"] == pytest.approx(6)
    assert cpu_batch_s(SIZES, 400, CPU) == 2 + 45 + 8


def test_batches_that_cugraph_samples():
    """The host waits for its part of a call; the GPU's kernels are not ours."""
    with pytest.raises(InputError, match="Expected constants of cuGraph"):
        loading(topology="distributed")
    machine = dataclasses.replace(MACHINE, cugraph=CuGraphCosts(gpus=2, batch_s=1e-3, edge_s=2e-9))
    found, own = loading(machine=machine, topology="distributed"), loading()
    assert found["host"] == pytest.approx(own["host"] + 1e-3 + 2e-9 * WORK.sizes.num_edges)
    assert found["gpu"] < own["gpu"]


def test_steps_and_epochs():
    times = predict(WORK, Cluster(), MACHINE)
    assert times.loader_s == SAMPLE + 1
    assert times.step_s == SAMPLE + 1 + 1.0
    assert times.bound == "gpu"
    assert times.steps == 100
    assert times.start_s == 9
    assert times.epoch_s == pytest.approx(9 + 100 * times.step_s)
    assert times.loader_epoch_s == pytest.approx(9 + 99 * times.loader_s)
    several = predict(WORK, Cluster(num_nodes=3, gpus_per_node=2), MACHINE)
    assert several.steps == 17  # the last one is not full
    assert several.start_s == 2 * 9
    assert several.all_reduce_s == pytest.approx(2 * 3 * 0.01)  # messages only: the step is the user's
    assert several.training["gpu"] == pytest.approx(SAMPLE + 2 + 2 * 3 * 0.01)


def test_the_step_of_a_graph_sage():
    work = dataclasses.replace(WORK, step_s=None, hidden=50, classes=7)
    step = graph_sage(work, GPU)
    products = 2 * 4 * 100 * 100 * 50 + 3 * 4 * 40 * 50 * 7
    moved = 4 * (90 * 100 * 5.5 + 100 * 50 * 4.5) + 4 * (30 * 50 * 14 + 40 * 7 * 4.5)
    assert step.gpu == pytest.approx(products / 1e9 + moved / GPU.copy)
    assert step.host == 2 * 0.5
    assert step.gradient_bytes == 4 * 2 * (100 * 50 + 50 * 7)
    half = graph_sage(dataclasses.replace(work, half=True), GPU)
    assert half.gpu == pytest.approx(products / 1e10 + moved / 2 / GPU.copy)
    assert half.host == 2 * 0.75
    host = predict(work, Cluster(gpus_per_node=2), MACHINE).training["host"]
    assert host == pytest.approx(2 * (3 + 1 + 0.125))


def test_the_step_of_a_graph_sage_that_is_captured_and_trimmed():
    """It computes rows that the next layers need, of padded batches, and the host only loads."""
    work = dataclasses.replace(WORK, step_s=None, hidden=50, classes=7, captured=True)
    step = graph_sage(work, GPU)
    products = 2 * 4 * 44 * 100 * 50 + 3 * 4 * 11 * 50 * 7
    first = 100 * (99 + 44) / 2 + 44 * 50 * 4.5
    second = 50 * ((33 + 11) / 2 + (33 + 44) / 2 + 2 * 44 + 11) + 11 * 7 * 4.5
    moved = 4 * (first + second) + 110 * 400
    assert step.gpu == pytest.approx(2 * 4.0 + products / 1e9 + moved / GPU.copy)
    assert step.host == 0
    assert step.gradient_bytes == graph_sage(dataclasses.replace(work, captured=False), GPU).gradient_bytes
    times = predict(work, Cluster(), MACHINE)
    assert times.training["host"] == times.loading["host"] == 3 + 0.75
    assert times.all_reduce_s == 0
    several, eager = (
        predict(dataclasses.replace(work, captured=captured), Cluster(gpus_per_node=2), MACHINE).all_reduce_s
        for captured in (True, False)
    )
    assert several == pytest.approx(eager + 0.375)


def test_a_step_that_was_captured():
    """docs/benchmarks-gpu.md: 2.00 ms on an H200 with loading, untrimmed, bound by the GPU. Nothing was fitted."""
    work = Workload(
        sizes=expected_sizes(1 << 20, 1 << 24, (15, 10, 5), 1024), batch_size=1024, num_seeds=1024, row_bytes=512,
        features=128, classes=64,
    )  # fmt: skip
    assert predict(work, Cluster(), H200).training["gpu"] == pytest.approx(2.00e-3, rel=0.15)


def test_more_of_anything_takes_longer():
    one = predict(dataclasses.replace(WORK, step_s=None), Cluster(), H200)
    wide = predict(dataclasses.replace(WORK, step_s=None, hidden=4096), Cluster(), H200)
    assert wide.training["gpu"] > one.training["gpu"]
    assert wide.training["host"] == one.training["host"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batch_size": 0}, "batch_size"), ({"num_seeds": 0}, "num_seeds"), ({"hidden": 0}, "hidden"),
     ({"step_s": 0.0}, "a step of more than 0 seconds")],
)  # fmt: skip
def test_wrong_workloads(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(WORK, **change)


@pytest.mark.parametrize(
    ("change", "message"), [({"num_nodes": 0}, "num_nodes"), ({"threads": 0}, "threads"), ({"cache": 1.5}, "0 to 1")]
)
def test_wrong_clusters(change, message):
    with pytest.raises(InputError, match=message):
        Cluster(**change)
