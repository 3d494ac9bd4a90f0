"""The optimizers and parameters of a step: found while it runs eagerly, and made fit for recording."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from manyhop_train.capture.objects import Reads, Snapshot, collect, place_of, same
from manyhop_train.capture.replicas import Between, Replicas

WEIGHTS: Final = "weights"
"""Parameters of optimizers with moments: if a gradient is only rounding error, its sign determines the update, and only
the moments show faults."""


class StepState:
    """State that a step changes: parameters, buffers, optimizers and gradients; and objects that it reads.

    A graph repeats the numbers of its recording. Learning rates of most optimizers are tensors while a step runs, so
    graphs read the current ones. Other settings of optimizers, numbers and hooks of modules, and ``requires_grad`` are
    part of a graph's key, and so are those of watched objects.
    """

    def __init__(self, watched: Sequence[object], replicas: Replicas) -> None:
        self.watched, self.replicas = watched, replicas
        self.optimizers: dict[int, Optimizer] = {}
        """Those that the step calls, by id."""
        self._rates: dict[int, _Rate] = {}
        self.parameters: dict[int, torch.nn.Parameter] = {}
        """Those of all optimizers and modules of the step, by id."""
        self._buffers: list[Tensor] = []
        self._modules: dict[int, torch.nn.Module] = {}
        self._names: dict[int, str] = {}
        self._snapshot, self._places = Snapshot((), (), ()), list[int]()
        self._settings: list[Hashable] = []
        self._known: tuple[list[object], list[object]] = [], []
        self._others, self._changed = list[Tensor](), list[Tensor]()
        self.low = False
        """Whether the first step has calculated numbers of 16 bits."""
        self.refusal: str | None = None
        """Why the step cannot be recorded, as far as its modules and gradients show."""

    def note(self) -> None:
        """Store the participating objects and their memory."""
        modules, optimizers = self._modules.values(), self.optimizers.values()
        parts: list[dict[Any, Any]] = [d for m in modules for d in (m._modules, m._parameters, m._buffers)]
        hooks: list[dict[int, Any]] = []
        for m in modules:
            hooks += (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
        for optimizer in optimizers:
            parts += [optimizer.state, *[state for state in optimizer.state.values() if isinstance(state, dict)]]
            hooks += (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        self._snapshot = Snapshot([vars(one) for one in (*modules, *optimizers)], parts, hooks)
        self._buffers = [b for m in modules for b in m._buffers.values() if b is not None]
        self._places, self._known = self._places_now(), self._read_settings()

    def replaced(self) -> str | None:
        """Return the name of an object that was replaced or moved since :meth:`note`."""
        before, self._known = self._known, self._read_settings()
        for kind, known, now in zip(("param_groups", "what watch= names"), before, self._known, strict=True):
            if not same(known, now):
                return kind
        if (name := self._snapshot.replaced()) is not None:
            return name
        return None if self._places_now() == self._places else "the memory of a weight or of a buffer"

    def key(self) -> Hashable:
        """Return the settings that a graph repeats, as of the last :meth:`note` or :meth:`replaced`."""
        learning = [
            (p.requires_grad, len(p._backward_hooks or ()), len(p._post_accumulate_grad_hooks or ()))
            for p in self.parameters.values()
        ]
        return *self._settings, self._snapshot.plain, *learning

    def _read_settings(self) -> tuple[list[object], list[object]]:
        """Read the settings of optimizers and watched objects. Return the objects among them."""
        plain, groups, watched = list[Hashable](), list[object](), list[object]()
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                left_out = {"params", "initial_lr", "lr" if id(group) in self._rates else ""}
                groups.append(group)
                collect({name: value for name, value in group.items() if name not in left_out}, plain, groups)
                plain.append(len(group["params"]))
        for one in self.watched:
            collect(one, plain, watched, whole=True)
        self._settings = plain
        return groups, watched

    def _places_now(self) -> list[int]:
        return [tensor.data_ptr() for tensor in (*self.parameters.values(), *self._buffers)]

    def tensors(self) -> list[tuple[str, str, Tensor]]:
        """Return kinds, names and tensors that a step may change: of modules, optimizers, gradients, and others."""
        found = [("buffer", self.name_of(b), b) for b in self._buffers]
        moments = set[int]()
        for optimizer in self.optimizers.values():
            for parameter, state in optimizer.state.items():
                for name, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(parameter, Tensor) and isinstance(value, Tensor):
                        found.append((str(name), f"{name} of {self.name_of(parameter)}", value))
                        if value.shape == parameter.shape and value.is_floating_point():
                            moments.add(id(parameter))
        for p in self.parameters.values():
            found.append((WEIGHTS if id(p) in moments else "parameter", self.name_of(p), p))
            if p.grad is not None:
                found.append(("gradient", f"the gradient of {self.name_of(p)}", p.grad))
        return [*found, *(("other", "a tensor that it changes", t) for t in self._changed)]

    def name_of(self, tensor: Tensor) -> str:
        """Return the name of a parameter or buffer."""
        return self._names.get(id(tensor), f"a tensor {list(tensor.shape)}")

    @contextmanager
    def observe(self, batch: Sequence[Tensor] | None) -> Iterator[None]:
        """Find optimizers while the step runs eagerly.

        With the tensors of the first batch, also find modules; compiled ones run eagerly, as hooks recompile them.
        """
        if DistributedDataParallel._active_ddp_module is not None:
            self.refusal = (
                "it is called by the forward() of a DistributedDataParallel. Call that in the step, or in Lightning "
                "let CaptureSteps capture it"
            )
        with ExitStack() as stack:
            stack.callback(
                register_optimizer_step_pre_hook(lambda optimizer, *_: self._add_optimizer(optimizer)).remove
            )
            if batch is not None:
                stack.callback(register_module_forward_pre_hook(lambda module, *_: self._add_module(module)).remove)
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
                # DDP's first step, which is not recorded, runs on a different stream from DDP's constructor.
                warnings.filterwarnings("ignore", ".*AccumulateGrad.*stream")
                stack.callback(self._keep, stack.enter_context(Reads()), batch)
                if "torch._dynamo" in sys.modules:
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self.current_rates())
            yield

    @contextmanager
    def current_rates(self) -> Iterator[None]:
        """Replace learning rates by tensors with the current values."""
        for rate in self._rates.values():
            rate.enter()
        try:
            yield
        finally:
            for rate in self._rates.values():
                rate.leave()

    def write_rates(self) -> None:
        """Write the current learning rates for graphs."""
        for rate in self._rates.values():
            rate.write()

    def outside(self, between: Between) -> AbstractContextManager[None]:
        """Run the collectives of ``DistributedDataParallel`` through ``between``, whether this rank replays or not."""
        return self.replicas.running(between) if self.refusal is None else nullcontext()

    def obstacle(self) -> str | None:
        """Return why the step cannot be recorded; ``None``: no reason is known."""
        if self.refusal is not None:
            return self.refusal
        for optimizer in self.optimizers.values():
            if isinstance(optimizer, torch.optim.Adagrad) and not any(g["lr_decay"] for g in optimizer.param_groups):
                continue  # which counts steps for that only
            for parameter, state in optimizer.state.items():
                if not isinstance(parameter, Tensor) or not isinstance(state, dict):
                    continue
                for name, value in state.items():
                    if type(value) in (int, float) or (isinstance(value, Tensor) and value.device != parameter.device):
                        return f"{type(optimizer).__name__} reads '{name}' of its state on the host"
        return None

    def _keep(self, reads: Reads, batch: Sequence[Tensor]) -> None:
        """Keep outside memory that the step reads or changes, except the batch and known tensors."""
        if reads.scales:
            self.refusal = (
                "steps of a GradScaler cannot be captured: it decides on the host. Call its unscale_(), step() and "
                "update() outside, or use bfloat16"
            )
        self.low = reads.low
        own = {place_of(tensor) for tensor in (*batch, *(each[-1] for each in self.tensors()))}
        self._others = [memory for place, memory in reads.read.items() if place not in own]
        self._changed = [memory for place, memory in reads.written.items() if place not in own]

    def _add_module(self, module: torch.nn.Module) -> None:
        wrapper, ranks = getattr(module, "_orig_mod", module), ("torch.nn.parallel", "torch.distributed")
        if isinstance(module, DistributedDataParallel):
            reason = self.replicas.add(module)
            if reason is not None:
                self.refusal = f"DistributedDataParallel is not captured where {reason}"
            for parameter in module.parameters():
                self.parameters.setdefault(id(parameter), parameter)
        elif isinstance(module, torch.nn.SyncBatchNorm) or type(wrapper).__module__.startswith(ranks):
            self.refusal = (
                f"{type(wrapper).__name__} talks to other ranks in the middle of a step. Wrap the model, compiled or "
                "not, in DistributedDataParallel"
            )
        self.refusal = getattr(module, "not_captured", self.refusal)
        if id(module) not in self._modules:
            self._modules[id(module)] = module
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                self._names.setdefault(id(tensor), f"{type(module).__name__}'s {name}")
        for parameter in module.parameters(recurse=False):
            self.parameters.setdefault(id(parameter), parameter)

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        self.optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.parameters.setdefault(id(parameter), parameter)
            if any(p.grad is not None and p.grad.is_sparse for p in group["params"]):
                self.refusal = "it has sparse gradients, which no graph can hold. Make embeddings with sparse=False"
        if self.refusal is not None:
            return
        _make_capturable(optimizer)
        for group in optimizer.param_groups:
            is_number = id(group) not in self._rates and isinstance(group["lr"], float | int)
            if is_number and _takes_tensors(optimizer, group):
                self._rates[id(group)] = _Rate(group)
                self._rates[id(group)].enter()  # observe() leaves all of them


class _Rate:
    """The learning rate of a group of parameters, as a number for users and as a tensor for graphs."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group
        self._given: float | Tensor = group["lr"]
        self._number = float(self._given)
        self._tensor = torch.tensor(self._number, device=group["params"][0].device)

    def write(self) -> None:
        """Write the number to the tensor if it has changed."""
        if (number := float(self.group["lr"])) != self._number:
            self._tensor.fill_(number)
            self._number = number

    def enter(self) -> None:
        """Replace the number by the tensor."""
        self.write()
        self._given = self.group["lr"]  # a number, or the user's own tensor
        self.group["lr"] = self._tensor

    def leave(self) -> None:
        """Restore the number."""
        if self.group["lr"] is self._tensor:
            self.group["lr"] = self._given


def _takes_tensors(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Return whether an optimizer accepts a learning rate as a tensor without reading it on the host."""
    if isinstance(optimizer, torch.optim.SGD):
        return group["fused"] is True
    if isinstance(optimizer, torch.optim.RMSprop):
        return group["capturable"] is True and group["foreach"] is not False and not group["differentiable"]
    return isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)


def _make_capturable(optimizer: Optimizer) -> None:
    """Move step counts to the GPU; use the fused Adam, AdamW and SGD unless the user has chosen an implementation."""
    for group in optimizer.param_groups:
        parameters = group["params"]
        if not all(p.is_cuda for p in parameters):
            continue
        if (
            isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW | torch.optim.SGD)
            and group["fused"] is None
            and group["foreach"] is None
            and not group["differentiable"]
            and all(type(p) is torch.nn.Parameter and p.is_floating_point() for p in parameters)
        ):
            group["fused"] = True
        # RAdam on the GPU subtracts large float32 numbers, and is 1 % off in its first steps.
        if group.get("capturable") is False and not isinstance(optimizer, torch.optim.RAdam):
            group["capturable"] = True
            for parameter in parameters:
                count = optimizer.state.get(parameter, {}).get("step")
                if isinstance(count, Tensor) and count.device != parameter.device:
                    optimizer.state[parameter]["step"] = count.to(parameter.device)
