"""Options of loaders: keywords and their documentation, the device, cores of threads."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypedDict, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler

from manyhop.errors import InputError
from manyhop.features import DistributedRows
from manyhop.loading import EngineName, EpochIterator, EpochLoader, check_names, check_options, check_placement, own_gpu
from manyhop.loading.padding import Pad
from manyhop.loading.pipeline import Uneven
from manyhop.loading.trainers import SeedPositions
from manyhop.memory.places import Place
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.system import triton_compiler
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.loaders.check import check_torch_arguments
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.typing import PyGData

InitT = TypeVar("InitT", bound=Callable[..., None])
LoaderT = TypeVar("LoaderT", bound=type)
BatchT = TypeVar("BatchT")


class TorchOptions(TypedDict, total=False):
    """Keywords of all loaders, for torch's ``DataLoader``."""

    batch_size: int
    shuffle: bool | None
    sampler: Iterable[object] | None
    batch_sampler: Iterable[object] | None
    num_workers: int
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: object
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool


class RankOptions(TorchOptions, total=False):
    """Keywords of all loaders, including those of random walks; see :class:`manyhop_pyg.NodeLoader`."""

    seed: int | None
    distributed: bool
    uneven: Uneven | None
    rank_timeout: float | None


class LoaderOptions(RankOptions, total=False):
    """Keywords of loaders of nodes and edges."""

    seed_parts: int | None
    device: torch.device | str | None
    placement: Place | None
    engine: EngineName | None
    pad: Pad | None


def extends(source: type, *documented: type, but: Collection[str] = ()) -> Callable[[LoaderT], LoaderT]:
    """Decorate a loader that passes ``**kwargs`` on: add these arguments to its signature and docstring.

    ``help()`` and Lightning read the signature.

    Args:
        source: class that receives ``**kwargs``.
        documented: other classes whose docstrings explain arguments of the loader.
        but: arguments of ``source`` that the loader does not have.
    """

    def complete(loader: LoaderT) -> LoaderT:
        init: Any = loader.__init__  # type: ignore[misc]
        *own, kwargs = inspect.signature(init).parameters.values()
        passed = inspect.signature(source.__init__).parameters.values()  # type: ignore[misc]
        known = {parameter.name for parameter in own} | set(but)
        own += [p.replace(kind=p.KEYWORD_ONLY) for p in passed if p.name not in known and p.default is not p.empty]
        init.__signature__ = inspect.Signature([*own, kwargs])
        body, _, sections = split_docstring(loader)
        classes: list[type] = [*documented, source, loader]
        texts = {name: text for one in classes for name, text in split_docstring(one)[1].items()}
        # Several names may share a text.
        explained = dict.fromkeys(texts[name] for name in (p.name for p in (*own, kwargs)) if name in texts)
        loader.__doc__ = "\n".join([body + "Args:", *explained, "", sections])
        return loader

    return complete


def split_docstring(documented: type) -> tuple[str, dict[str, str], str]:
    """Return a docstring before its ``Args:``, the text of each argument, and the other sections."""
    body, *sections = re.split(r"^(?=\w+:\n)", inspect.cleandoc(documented.__doc__ or "") + "\n", flags=re.MULTILINE)
    found: dict[str, str] = {}
    for section in (section for section in sections if section.startswith("Args:")):
        for text in re.split(r"\n(?=    [\w*])", section.rstrip())[1:]:
            found |= dict.fromkeys(re.findall(r"\w+", text.partition(":")[0]), text)
    return body, found, "".join(section for section in sections if not section.startswith("Args:"))


def keeps_arguments(init: InitT) -> InitT:
    """Decorate a constructor: reuse its first arguments when Lightning calls it again with another sampler.

    Lightning reads arguments from attributes with the names in a constructor's signature. It misses ``**kwargs`` and a
    ``batch_size`` that is not torch's.
    """
    signature = inspect.signature(init)
    torchs = inspect.signature(DataLoader.__init__).parameters.keys() - signature.parameters.keys()

    @functools.wraps(init)
    def make(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        dataset = kwargs.get("dataset")
        if isinstance(dataset, SeedPositions) and dataset.arguments:
            del kwargs["dataset"]
            kwargs |= dataset.arguments
        init(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        positions = cast("SeedPositions", self.dataset)
        positions.arguments = {name: value for name, value in given.items() if name not in ("self", *torchs)}

    return cast("InitT", make)


class SeedLoader(EpochLoader, DataLoader[BatchT]):
    """A torch ``DataLoader`` over positions of seeds, whose batches ranks may share."""

    _pins_batches = False

    def _set_up(
        self,
        num_items: int,
        kwargs: dict[str, Any],
        distributed: bool,
        uneven: Uneven | None,
        rank_timeout: float | None,
        seed_parts: int | None = None,
    ) -> bool:
        """Set the options of ranks, and those of torch, ``kwargs``; return whether to shuffle the seeds."""
        check_torch_arguments(kwargs)
        check_options(distributed, uneven, rank_timeout, seed_parts, kwargs)
        self.distributed, self.seed_parts, self.uneven, self.rank_timeout = distributed, seed_parts, None, None
        if distributed:
            self.uneven = uneven or "pad"
            self.rank_timeout = DEFAULT_TIMEOUT if rank_timeout is None else float(rank_timeout)
        check_names(type(self), kwargs)
        shuffle = bool(kwargs.get("shuffle"))
        self._num_items = num_items
        self._own_order = kwargs.get("sampler") is None and kwargs.get("batch_sampler") is None
        if num_items == 0:
            kwargs["shuffle"] = False  # torch's random sampler cannot shuffle nothing
        # Positions are not a torch Dataset, but have all that a DataLoader needs.
        DataLoader.__init__(self, SeedPositions(num_items), collate_fn=self.collate_fn, **kwargs)  # type: ignore[arg-type]
        del self.__dict__["collate_fn"]  # it is a method; the attribute would be a reference cycle
        return shuffle

    def __iter__(self) -> EpochIterator:  # type: ignore[override]  # an iterator of our own
        return self._get_iterator()

    def _get_iterator(self) -> EpochIterator:  # type: ignore[override]  # as of torch, subclasses may replace it
        self._settle_device()
        self._pins_batches = self.pin_memory and not self._stats.on_gpu
        if self._pins_batches and not torch.accelerator.is_available():
            warnings.warn("pin_memory=True, but no accelerator is found: memory is not pinned.", stacklevel=3)
            self._pins_batches = False
        return self._begin_epoch(self._index_sampler)


def sampler_of_arguments(loader: object, given: Mapping[str, Any]) -> BaseSampler:
    """Return the sampler of a loader's arguments, and store it and these as attributes, which Lightning reads."""
    names = [name for name in inspect.signature(NeighborSampler).parameters if name in given and name != "data"]
    arguments = {name: given[name] for name in names}
    sampler: BaseSampler | None = given["neighbor_sampler"]
    if sampler is None:
        sampler = NeighborSampler(given["data"], **arguments)
    vars(loader).update(arguments, neighbor_sampler=sampler)
    return sampler


def check_device(device: torch.device | str | None, placement: object) -> torch.device | None:
    """Return the device that the user names; ``None``: the one that the process uses."""
    check_placement(placement, None)
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise InputError(f"Expected device to be 'cuda', 'cuda:0', 'cpu' or None, got {device!r}.")
    check_placement(placement, found)
    if found.type == "cuda" and not (found.index or 0) < torch.cuda.device_count():
        raise InputError(
            f"Expected an available device, got {device!r}, and {torch.cuda.device_count()} CUDA devices are found. "
            "device='cpu' creates batches on the CPU, as does device=None if no GPU is in use."
        )
    return found


def find_device(wanted: torch.device | None, data: PyGData) -> torch.device | None:
    """Return the GPU for batches; ``None``: the CPU."""
    if wanted is not None:
        if wanted.type == "cpu":
            return None
        return torch.device("cuda", torch.cuda.current_device()) if wanted.index is None else wanted
    found = own_gpu(tensors_of(data))
    return found if found is not None and triton_compiler.usable() else None


def tensors_of(data: PyGData) -> Iterator[Tensor]:
    """Return the tensors of data, or of manyhop's feature store."""
    values: list[object] = []
    if isinstance(data, Data | HeteroData):
        values = [value for store in data.stores for value in store.values()]
    elif isinstance(data[0], FeatureStore):
        tensors = [column.tensor for column in data[0].columns()]
        values = [tensor.rows if isinstance(tensor, DistributedRows) else tensor for tensor in tensors]
    return (value for value in values if isinstance(value, Tensor))
