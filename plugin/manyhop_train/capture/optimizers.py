"""The optimizers and parameters of a step: found while it runs eagerly, and made fit for recording."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from operator import is_
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from manyhop_train.capture.replicas import Between, Replica, collecting, obstacle
from manyhop_train.capture.values import Memory, Values, of_module, of_object

_OF_RANKS: Final = ("torch.nn.parallel", "torch.distributed")
"""Modules whose steps are collectives, in the middle of forward and backward passes."""


class StepState:
    """What a step changes besides its batch: optimizers and gradients.

    A graph repeats the numbers with which it was recorded. Learning rates of most optimizers are tensors while a step
    runs, so that graphs read the current ones; all other settings of optimizers are part of the key of a graph, as are
    numbers of modules, such as their modes, and which parameters learn.

    Args:
        replicas: that ranks have run, by their numbers.
    """

    def __init__(self, replicas: dict[int, Replica] | None = None) -> None:
        self._optimizers: dict[int, Optimizer] = {}
        self._groups: dict[int, int] = {}
        self._rates: list[_Rate] = []
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._replicas = {} if replicas is None else replicas
        self._modules: dict[int, torch.nn.Module] = {}
        self._buffers: list[Tensor] = []
        self._values, self._memory = Values(), Memory()
        self._hosts: list[Tensor] = []
        self._known: list[object] = []
        self._settings: Hashable = ()  # as long as these are the values of all groups
        self.refusal: str | None = None
        """Why the step cannot be recorded, as far as its modules show."""

    def successor(self) -> StepState:
        """Return the state of a step that has other objects by now; ranks go on to call the same collectives."""
        return StepState(self._replicas)

    def replaced(self) -> str | None:
        """Return the name of a part of a module in whose place another one is."""
        return self._values.replaced()

    def moved(self) -> bool:
        """Whether weights, buffers or states of optimizers are elsewhere than at the last call."""
        return self._memory.moved([*self._parameters.values(), *self._buffers], self._optimizers.values())

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Those of all optimizers and modules that the step used."""
        return list(self._parameters.values())

    @property
    def updates(self) -> bool:
        """Whether the step calls an optimizer."""
        return bool(self._optimizers)

    @contextmanager
    def observe(self, *, modules: bool) -> Iterator[None]:
        """Find optimizers, and modules, while the step runs eagerly.

        Args:
            modules: compiled modules run without compilation, since hooks would make ``torch.compile`` compile again.
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
            if modules:
                stack.callback(register_module_forward_pre_hook(lambda module, *_: self._add_module(module)).remove)
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
                # DDP's first step, which is not recorded, runs on another stream than the one where DDP was made.
                warnings.filterwarnings("ignore", ".*AccumulateGrad.*stream")
            if modules and "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self.current_rates())
            yield

    @contextmanager
    def current_rates(self) -> Iterator[None]:
        """Let learning rates be tensors, with the values that users and schedulers have set."""
        for rate in self._rates:
            rate.enter()
        try:
            yield
        finally:
            for rate in self._rates:
                rate.leave()

    @contextmanager
    def outside(self, between: Between) -> Iterator[None]:
        """Run the collectives of ``DistributedDataParallel`` through ``between``.

        From the step after the first on: all ranks then call the same collectives, whether they replay or not.
        """
        replicas = [] if self.refusal is not None else list(self._replicas.values())
        with ExitStack() as stack:
            for replica in replicas:
                stack.enter_context(replica.running(between))
            if replicas:
                stack.enter_context(collecting(replicas))
            yield

    def write_rates(self) -> None:
        """Give graphs the current learning rates."""
        for rate in self._rates:
            rate.write()

    def key(self) -> Hashable:
        """Return the settings that a graph repeats."""
        values: list[object] = []
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                values += group.values()
                values.append(len(group["params"]))
        if len(values) != len(self._known) or not all(map(is_, values, self._known)):
            self._known, self._settings = values, tuple(self._settings_now())
        hosts = [tensor.item() for tensor in self._hosts]
        return self._settings, *hosts, self._values.plain, *[p.requires_grad for p in self._parameters.values()]

    def obstacle(self) -> str | None:
        """Return why the step cannot be recorded; ``None``: as far as is known by now, it can."""
        if self.refusal is not None:
            return self.refusal
        for optimizer in self._optimizers.values():
            if isinstance(optimizer, torch.optim.Adagrad) and not any(g["lr_decay"] for g in optimizer.param_groups):
                continue  # which counts steps for that only
            for parameter, state in optimizer.state.items():
                if not isinstance(parameter, Tensor) or not isinstance(state, dict):
                    continue
                for name, value in state.items():
                    if type(value) in (int, float) or (isinstance(value, Tensor) and value.device != parameter.device):
                        return f"{type(optimizer).__name__} reads '{name}' of its state on the host"
        return None

    def _settings_now(self) -> list[Hashable]:
        rated = {id(rate.group) for rate in self._rates}
        self._hosts = [
            value
            for value in self._known
            if isinstance(value, Tensor) and value.device.type == "cpu" and value.numel() == 1
        ]
        return [
            (name, len(value) if name == "params" else value if value.__hash__ else id(value))
            for optimizer in self._optimizers.values()
            for group in optimizer.param_groups
            for name, value in group.items()
            if name != "initial_lr" and not (name == "lr" and id(group) in rated)
        ]

    def _add_module(self, module: torch.nn.Module) -> None:
        wrapper = getattr(module, "_orig_mod", module)  # of a compiled module
        if isinstance(module, DistributedDataParallel) and id(module) not in self._replicas:
            reason = obstacle(module)
            if reason is not None:
                self.refusal = f"DistributedDataParallel is not captured where {reason}"
            self._replicas[id(module)] = Replica(module)
            for parameter in module.parameters():
                self._parameters.setdefault(id(parameter), parameter)
        elif isinstance(module, torch.nn.SyncBatchNorm) or (
            type(wrapper).__module__.startswith(_OF_RANKS) and not isinstance(module, DistributedDataParallel)
        ):
            self.refusal = (
                f"{type(wrapper).__name__} talks to other ranks in the middle of a step. Wrap the model, compiled or "
                "not, in DistributedDataParallel"
            )
        if id(module) not in self._modules:
            self._modules[id(module)] = module
            self._values.add(of_module(module))
            self._buffers += [buffer for buffer in module._buffers.values() if buffer is not None]
        for parameter in module.parameters(recurse=False):
            self._parameters.setdefault(id(parameter), parameter)

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer
            self._values.add(of_object(optimizer))
            optimizer.register_load_state_dict_post_hook(self._loaded)
        elif len(optimizer.param_groups) == self._groups[id(optimizer)]:
            return
        self._groups[id(optimizer)] = len(optimizer.param_groups)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._parameters.setdefault(id(parameter), parameter)
        _make_capturable(optimizer)
        rated = {id(rate.group) for rate in self._rates}
        for group in optimizer.param_groups:
            if isinstance(group["lr"], float | int) and _takes_tensors(optimizer, group) and id(group) not in rated:
                self._rates.append(_Rate(group))
                self._rates[-1].enter()  # observe() leaves all of them

    def _loaded(self, optimizer: Optimizer) -> None:
        self._optimizers.pop(id(optimizer), None)  # the next eager step finds it again
        self._rates = [r for r in self._rates if any(r.belongs_to(other) for other in self._optimizers.values())]


class _Rate:
    """The learning rate of a group of parameters, as a number for users and as a tensor for graphs."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group
        self._given: float | Tensor = group["lr"]
        self._number = float(self._given)
        self._tensor = torch.tensor(self._number, device=group["params"][0].device)

    def belongs_to(self, optimizer: Optimizer) -> bool:
        """Whether the group is one of an optimizer."""
        return any(self.group is group for group in optimizer.param_groups)

    def write(self) -> None:
        """Write the number to the tensor, where it has changed."""
        if (number := float(self.group["lr"])) != self._number:
            self._tensor.fill_(number)
            self._number = number

    def enter(self) -> None:
        """Put the tensor in place of the number."""
        self.write()
        self._given = self.group["lr"]  # a number; a tensor, since the user has put it there
        self.group["lr"] = self._tensor

    def leave(self) -> None:
        """Put the number back."""
        if self.group["lr"] is self._tensor:
            self.group["lr"] = self._given


def _takes_tensors(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether an optimizer takes the learning rate of a group as a tensor without reading it on the host."""
    if isinstance(optimizer, torch.optim.SGD):
        return group["fused"] is True
    if isinstance(optimizer, torch.optim.RMSprop):
        return group["capturable"] is True and group["foreach"] is not False and not group["differentiable"]
    return isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)


def _make_capturable(optimizer: Optimizer) -> None:
    """Let counts of steps reside on the GPU; let Adam, AdamW and SGD update by one kernel unless the user has chosen
    how."""
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
        if group.get("capturable") is False:
            group["capturable"] = True
            for parameter in parameters:
                count = optimizer.state.get(parameter, {}).get("step")
                if isinstance(count, Tensor) and count.device != parameter.device:
                    optimizer.state[parameter]["step"] = count.to(parameter.device)
