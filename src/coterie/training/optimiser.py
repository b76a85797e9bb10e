"""SGD and Adam on rows: ``torch.optim``'s arithmetic for k models at once, with a pull s_k per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.models import Models
from coterie.training.memory import Memory
from coterie.training.settings import ProxPlace, TrainingSettings

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Pull:
    """The proximal pull ``strength * (theta - anchor)``: ``strength: (k,)``, ``anchor: (k, *shape)``.

    Its place is the gradient (inside momentum) or after momentum. FEDORA's released code applies it after the
    optimiser's step, but to theta as it was before the step, which is the same.
    """

    anchor: Tensors
    strength: Tensor
    place: ProxPlace = "gradient"

    def column(self, theta: Tensor) -> Tensor:
        """The strengths of the rows of ``theta: (a, *shape)``, shaped to be multiplied with it."""
        return self.strength[: len(theta)].to(theta.dtype).view(-1, *[1] * (theta.ndim - 1))


@dataclass
class Optimiser:
    """The state of one local training; rows ``0 .. a - 1`` are active in a step.

    ``steps`` counts those of each parameter, for Adam. ``taken: (k,)`` counts the steps of each row where its state is
    that of earlier trainings too.
    """

    settings: TrainingSettings
    lr: float
    pull: Pull | None = None
    steps: dict[str, int] = field(default_factory=dict)
    state: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    taken: Tensor | None = None

    def begin(self, memory: Memory, order: Tensor) -> None:
        """Go on from what is remembered of k clients, whose rows are trained in ``order: (k,)``."""
        for kind, models in memory.state.items():
            self.state[kind] = {name: tensor[order] for name, tensor in models.parameters()}
        self.taken = None if memory.steps is None else memory.steps[order.to(memory.steps.device)]

    def remember(self, memory: Memory, order: Tensor) -> None:
        """Bring ``memory`` up to date, in the clients' own order; rows that have diverged begin anew next time."""
        back = order.argsort()
        for kind, models in memory.state.items():
            own = {name: self.state[kind][name][back] for name, _ in models.parameters()}
            memory.state[kind] = Models(replace(models.layout, buffers=()), own)
        if self.taken is not None:
            memory.steps = self.taken[back.to(self.taken.device)]
        memory.forget_diverged()

    def alone(self, row: int) -> Optimiser:
        """The optimiser of one row: its own pull, and its own part of the state there is so far."""
        pull = self.pull
        if pull is not None:
            anchor = {name: tensor[row : row + 1] for name, tensor in pull.anchor.items()}
            pull = Pull(anchor, pull.strength[row : row + 1], pull.place)
        state = {kind: {name: t[row : row + 1] for name, t in held.items()} for kind, held in self.state.items()}
        taken = None if self.taken is None else self.taken[row : row + 1]
        return Optimiser(self.settings, self.lr, pull, state=state, taken=taken)

    @torch.no_grad()
    def update(self, theta: Tensors, gradients: Tensors) -> None:
        """One step, in place. ``theta`` holds all rows, ``gradients`` the a active ones (and is used up)."""
        self._count(gradients)
        if self.pull is not None and self.pull.place == "gradient":
            for name, gradient in gradients.items():
                own = theta[name][: len(gradient)]
                gradient.addcmul_(self.difference(own, self.pull.anchor[name]), self.pull.column(own))
        if self.settings.clip is not None and gradients:
            clip_rows(list(gradients.values()), self.settings.clip)
        for name, gradient in gradients.items():
            own = theta[name][: len(gradient)]
            if self.settings.weight_decay:
                gradient.add_(own, alpha=self.settings.weight_decay)
            direction = self._adam(name, gradient) if self.settings.optimizer == "adam" else self._sgd(name, gradient)
            if self.pull is not None and self.pull.place != "gradient":
                own.lerp_(self.pull.anchor[name][: len(own)], self.pull.column(own) * self.lr)
            own.add_(direction, alpha=-self.lr)

    def _count(self, gradients: Tensors) -> None:
        if self.taken is not None and gradients:
            self.taken[: len(next(iter(gradients.values())))] += 1

    @property
    def fusible(self) -> bool:
        """Whether a step can be taken inside the backward pass: SGD that needs no gradient by itself."""
        plain = self.settings.optimizer == "sgd" and self.settings.clip is None and not self.settings.nesterov
        return plain and self.lr * self.settings.weight_decay < 1.0

    def difference(self, theta: Tensor, anchor: Tensor) -> Tensor:
        """``theta - anchor`` of the rows of ``theta: (a, *shape)``, in storage that all tensors and steps share."""
        scratch = self.state.setdefault("scratch", {})
        flat = scratch.get("")
        if flat is None or flat.numel() < theta.numel():
            flat = scratch[""] = theta.new_empty(theta.numel())
        return torch.sub(theta, anchor[: len(theta)], out=flat[: theta.numel()].view(theta.shape))

    def buffer(self, kind: str, name: str, like: Tensor) -> Tensor:
        """The active rows of a state like ``like: (a, *shape)``, zero at first."""
        buffers = self.state.setdefault(kind, {})
        if name not in buffers:
            buffers[name] = torch.zeros_like(like)
        return buffers[name][: len(like)]

    def _sgd(self, name: str, gradient: Tensor) -> Tensor:
        if not self.settings.momentum:
            return gradient
        momentum = self.buffer("momentum", name, gradient)
        momentum.mul_(self.settings.momentum).add_(gradient)
        return gradient.add_(momentum, alpha=self.settings.momentum) if self.settings.nesterov else momentum

    def _adam(self, name: str, gradient: Tensor) -> Tensor:
        first, second = self.settings.betas
        mean = self.buffer("mean", name, gradient)
        square = self.buffer("square", name, gradient)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        self.steps[name] = self.steps.get(name, 0) + 1
        steps = self.steps[name] if self.taken is None else self.taken[: len(gradient)].double()
        denominator = (square.sqrt() / _factor((1 - second**steps) ** 0.5, square)).add_(1e-8)
        return torch.div(mean, denominator).mul_(_factor(1 / (1 - first**steps), mean))


def _factor(value: float | Tensor, rows: Tensor) -> float | Tensor:
    """A number, or one for each of the ``rows: (a, *shape)``, to multiply them with."""
    return value.to(rows).view(-1, *[1] * (rows.ndim - 1)) if isinstance(value, Tensor) else value


def clip_rows(gradients: Sequence[Tensor], limit: float) -> None:
    """Scale each row's gradient, in place, to a norm of at most ``limit`` (as torch's clip_grad_norm_)."""
    squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients]).sum(0)
    scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))
