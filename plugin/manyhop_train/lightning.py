"""Callbacks for Lightning's Trainer: statistics of loaders, and captured steps."""

from __future__ import annotations

import functools
import importlib
import logging
import numbers
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from manyhop.arguments import flag
from manyhop.errors import InputError, MissingExtraError
from manyhop.loading import EpochLoader

_METRICS = ("seeds_per_s", "edges_per_s", "waited_s", "step_s")


def _callback() -> Any:
    """Return Lightning's ``Callback``, of the package that the script has imported."""
    names = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return importlib.import_module(f"{name}.callbacks").Callback
        except ImportError:
            continue
    advice = "Install it with: pip install lightning (or pytorch-lightning)"
    raise MissingExtraError("lightning", "", "manyhop_train.lightning", advice=advice)


class LoaderStatsMonitor(_callback()):  # type: ignore[misc]  # the class is found at run time
    """Log ``loader.stats().metrics()`` of manyhop's training loaders at the end of each epoch, for that epoch.

    Names are ``manyhop/waited_s`` and so on; ``manyhop/NAME/waited_s`` for a dictionary of loaders. With multiple
    ranks, the values are those of rank 0.

    Args:
        all_metrics: log all metrics, not only ``seeds_per_s``, ``edges_per_s``, ``waited_s`` and ``step_s``.
    """

    def __init__(self, *, all_metrics: bool = False) -> None:
        super().__init__()
        self._all = flag("all_metrics", all_metrics)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics of the epoch."""
        for prefix, loader in _loaders(trainer.train_dataloader):
            metrics = loader.stats(since="epoch").metrics(prefix)
            if not self._all:
                metrics = {prefix + name: metrics[prefix + name] for name in _METRICS}
            # With rank_zero_only, each rank logs its own values, without communication; sync_dist prevents a warning.
            pl_module.log_dict(metrics, on_step=False, on_epoch=True, sync_dist=True, rank_zero_only=True)


class CaptureSteps(_callback()):  # type: ignore[misc]  # the class is found at run time
    """Capture the training steps of a ``LightningModule``: ``training_step``, backward pass, clipping and update.

    Loaders need ``pad="auto"``. The trainer continues to count steps, call schedulers and log the values that
    ``training_step`` logs. Other Python code of ``training_step``, and hooks called in it or the backward pass, run
    when a step is recorded, but not when it is replayed; ``batch_idx`` also keeps its value.

    Args:
        capture: ``manyhop_pyg.capture`` or ``manyhop_dgl.capture``.
        watch: objects that ``training_step`` reads and that may change, as in ``capture``.
        verify: number of replays per check, as in ``capture``.

    Raises:
        InputError: ``watch`` or ``verify`` are wrong.
    """

    def __init__(self, capture: Callable[..., Any], *, watch: Sequence[object] = (), verify: int | None = None) -> None:
        super().__init__()
        self._capture = functools.partial(capture, watch=watch, verify=verify)
        self._capture(self._run)  # which checks them
        self._captured: Any = None
        self._trainer: Any = None
        self._accumulates = False
        self._own: dict[str, Callable[..., Any]] = {}
        self._given: Any = None  # batch of the trainer
        self._static: Any = None  # batch of the captured step
        self._update: tuple[Any, ...] = ()
        self._result: Any = None
        self._logged: dict[str, Any] = {}
        self._log_options: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    @property
    def step(self) -> Any:
        """The captured step, which counts replays; ``None`` before the training begins."""
        return self._captured

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Replace the steps of the module by captured ones.

        Raises:
            InputError: manual optimization, or gradients that are accumulated over batches.
        """
        if not pl_module.automatic_optimization:
            raise InputError(
                "Expected automatic_optimization=True for CaptureSteps, got False. Capture the step in the module."
            )
        if trainer.accumulate_grad_batches != 1:
            raise InputError(
                f"Expected accumulate_grad_batches=1 for CaptureSteps, got {trainer.accumulate_grad_batches}. Use "
                "larger batches, or capture the gradients in a module with automatic_optimization=False."
            )
        self._give_back(pl_module)  # after a search for a learning rate, which also trains
        self._trainer, self._accumulates = trainer, False
        self._captured = self._capture(self._run)
        for method in (self._training_step, self._optimizer_step, self._log):
            name = method.__name__.removeprefix("_")
            self._own[name] = getattr(pl_module, name)
            vars(pl_module)[name] = functools.wraps(self._own[name])(functools.partial(method))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note the batch."""
        self._given = batch

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore the module's own steps."""
        self._give_back(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restore the module's own steps, since the trainer does not call ``teardown`` after an exception."""
        self._give_back(pl_module)

    def _give_back(self, pl_module: Any) -> None:
        for name in self._own:
            vars(pl_module).pop(name, None)
        self._own = {}
        self._given = self._static = self._trainer = None

    def _optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        if self._trainer.accumulate_grad_batches != 1:  # by another callback
            if not self._accumulates:
                self._accumulates = True
                logging.getLogger("manyhop").warning("Steps run eagerly as long as accumulate_grad_batches is not 1")
            self._own["optimizer_step"](epoch, batch_idx, optimizer, optimizer_closure)
            return
        self._update = epoch, batch_idx, optimizer, optimizer_closure
        loss, extra, logged = self._captured(self._given)
        optimizer_closure._result = type(self._result)(closure_loss=loss, extra=extra)  # of the replay
        for name, (args, kwargs) in self._log_options.items():
            self._own["log"](name, logged.get(name, self._logged[name]), *args, **kwargs)

    def _run(self, batch: Any) -> tuple[Tensor, dict[str, Any], dict[str, Any]]:
        """Run the step of the trainer on a batch; its closure calls ``_training_step``."""
        self._static, self._logged, self._log_options = batch, {}, {}
        self._own["optimizer_step"](*self._update)
        self._static = None
        self._result = self._update[-1]._result
        tensors = {name: value for name, value in self._logged.items() if isinstance(value, Tensor)}
        return self._result.closure_loss, self._result.extra, tensors

    def _training_step(self, batch: Any, *args: Any) -> Any:
        return self._own["training_step"](batch if self._static is None else self._static, *args)

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if self._static is None:
            self._own["log"](name, value, *args, **kwargs)
            return
        if not isinstance(value, Tensor | numbers.Number):
            raise InputError(
                f"Expected a tensor or number to log from a captured step, got a {type(value).__name__} '{name}'. "
                "Update and log metrics in on_train_batch_end."
            )
        self._logged[name] = value.detach() if isinstance(value, Tensor) else value
        self._log_options[name] = args, kwargs


def _loaders(value: Any, prefix: str = "manyhop/") -> Iterator[tuple[str, EpochLoader]]:
    """Return manyhop's loaders of a Trainer, by the prefix of their metrics."""
    if isinstance(value, EpochLoader):
        yield prefix, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _loaders(part, f"{prefix}{name}/")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _loaders(part, f"{prefix}{number}/")
