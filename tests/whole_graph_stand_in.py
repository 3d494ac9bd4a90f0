"""What stands for WholeGraph and GPUs where there are none: ranks of a node see the same host memory."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.features.whole_memory import communicators
from manyhop.features.whole_memory import memory as whole_memory
from manyhop.memory import sharing
from manyhop.memory.placement import Hardware
from manyhop.ranks import world

CPU = torch.device("cpu")
GIB = 1 << 30


class Enum:
    def __getattr__(self, name: str) -> str:
        return name


class Array(np.ndarray[Any, Any]):
    """Memory that keeps the view it was taken from."""

    view_of: "View"


class View:
    typestr = "|i1"

    def __init__(self, tensor: Tensor) -> None:
        self.array = tensor.numpy()

    def __dlpack__(self) -> Any:
        array = self.array.view(Array)
        array.view_of = self
        return torch.from_numpy(array).__dlpack__()


class Handle:
    """Memory of WholeGraph's: shared by the ranks of the node, or of this rank alone."""

    def __init__(self, kind: str, sizes: list[int], rank: int) -> None:
        self.kind, self.sizes, self.rank = kind, sizes, rank
        self.nbytes = sizes[rank]
        if kind == "MtDistributed":
            self.tensor = torch.full((sizes[rank],), 77, dtype=torch.int8)
        else:
            self.tensor = sharing.share(lambda: torch.empty(sum(sizes), dtype=torch.int8), what="WholeGraph")

    def get_local_flatten_tensor(self, import_view: Any, *_: Any) -> Any:
        begin = 0 if self.kind == "MtDistributed" else sum(self.sizes[: self.rank])
        return import_view(View(self.tensor[begin : begin + self.nbytes])), begin

    def get_global_flatten_tensor(self, import_view: Any, *_: Any) -> Any:
        return import_view(View(self.tensor)), 0


class Binding:
    """What WholeMemory calls of WholeGraph; counts what is allocated."""

    WholeMemoryMemoryType = WholeMemoryMemoryLocation = WholeMemoryDataType = WholeMemoryLogLevel = Enum()

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.made = 0

    @property
    def live_bytes(self) -> int:
        """Bytes of this rank's GPU."""
        return sum(self.live.values())

    def init(self, *_: Any) -> None: ...
    def finalize(self) -> None: ...
    def destroy_communicator(self, handle: Any) -> None: ...

    def create_unique_id(self) -> bytearray:
        return bytearray(16)

    PyWholeMemoryUniqueID = create_unique_id

    def create_communicator(self, uid: Any, rank: int, size: int) -> Any:
        return SimpleNamespace(rank=rank, size=size, support_type_location=lambda *_: True)

    def malloc(self, nbytes: int, comm: Any, kind: str, location: Any, row_bytes: int, partition: Any) -> Handle:
        handle = Handle(kind, [int(rows) * row_bytes for rows in partition.tolist()], comm.rank)
        self.live[id(handle)] = handle.nbytes
        self.made += 1
        return handle

    def free(self, handle: Handle) -> None:
        del self.live[id(handle)]


_installed: list[Binding] = []


def install(patch: Any = setattr) -> Binding:
    """Have loaders of this process work on a "GPU" in the memory of the host; see ``patch(owner, name, value)``.

    A process in which that stays so has it once.
    """
    if patch is setattr and _installed:
        return _installed[0]
    import fast_interpreter  # noqa: F401
    from gpu_stand_ins import PendingEdges, Positions, pyg_works_on, stand_for_gpu

    import manyhop.features.exchange.gpu.exchange
    import manyhop.sampling
    from manyhop.memory.stores import places
    from manyhop.ranks import cuda
    from manyhop.sampling import CPUSampler, EdgeSampler

    binding = Binding()
    for module in (communicators, whole_memory):
        patch(module, "binding", lambda: binding)
    patch(communicators, "check_gpus", lambda *_, **__: CPU)
    patch(communicators, "require_communicator", lambda *_, **__: None)
    patch(whole_memory, "require_room", lambda *_, **__: None)
    patch(whole_memory, "require_contexts", lambda *_, **__: None)
    patch(torch.cuda, "synchronize", lambda *_: None)
    patch(torch.cuda, "current_device", lambda: 0)
    patch(cuda, "hardware", hardware)
    stand_for_gpu(patch, memory=None)
    pyg_works_on(patch, CPU)
    sys.modules["manyhop.loading.pipeline.gpu"] = SimpleNamespace(GPUPositions=Positions)  # type: ignore[assignment]
    sys.modules["manyhop.sampling.gpu.edges"] = SimpleNamespace(PendingEdges=PendingEdges)  # type: ignore[assignment]
    for name, kind in (("GPUSampler", CPUSampler), ("GPUEdgeSampler", EdgeSampler)):
        vars(manyhop.sampling)[name] = make_sampler(kind)
    patch(places, "page_locked", lambda rows: rows)
    patch(places, "_there", lambda device, place: CPU)
    if patch is setattr:
        _installed.append(binding)
    return binding


def hardware(device: Any, *, together: bool, **_: Any) -> Hardware:
    """GPUs that read each other's memory, one for each rank."""
    ours = world.init() if together else world.World(0, (0,))
    return Hardware(
        gpu_memory=80 * GIB, host_memory=500 * GIB, gpus_per_node=ours.local_world_size, num_nodes=ours.num_nodes,
        peer_access=True, wholegraph=True, together=together,
    )  # fmt: skip


def make_sampler(kind: Any) -> Any:
    """Stand for a sampler on a GPU: samples on the CPU once it is asked to finish."""

    class Sampler:
        def __init__(self, *args: Any, device: Any, **kwargs: Any) -> None:
            self._sampler = kind(*args, **kwargs)
            self.edge_type = getattr(self._sampler, "edge_type", None)

        def sample(self, request: Any) -> Any:
            return self._sampler.sample(request)

        def begin(self, requests: Any) -> Any:
            return SimpleNamespace(finish=lambda: [self._sampler.sample(request) for request in requests])

    return Sampler
