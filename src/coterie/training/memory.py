"""What optimisers keep of one training for the next: SGD's momentum, or Adam's running means and counts of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coterie.models import Models
from coterie.training.settings import TrainingSettings


@dataclass
class Memory:
    """What the optimisers of k clients keep; a training brings it up to date.

    Attributes:
        state: ``(k,)`` models of what was trained: SGD's ``momentum``, or Adam's ``mean`` and ``square``.
        steps: ``(k,)`` steps taken so far, int64; None where nobody needs them.
    """

    state: dict[str, Models]
    steps: Tensor | None = None

    @classmethod
    def blank(cls, settings: TrainingSettings, like: Models) -> Memory:
        """That of optimisers which have not stepped yet, for models shaped ``like: (k,)``."""
        like = like.without_buffers()
        steps = torch.zeros(len(like), dtype=torch.int64, device=like.device)
        return cls({kind: like.zeros() for kind in settings.running_means}, steps)

    def forget_diverged(self) -> None:
        """Make rows that hold infinities or NaN blank, from which no step would lead back."""
        for models in list(self.state.values()):
            sound = models.finite()
            self.state = {kind: models.kept(sound) for kind, models in self.state.items()}
            self.steps = None if self.steps is None else self.steps.where(sound.to(self.steps.device), 0)


class Memories(Protocol):
    """What the optimisers of one training remember, by the names of what they train."""

    def recall(self, name: str, models: Models) -> Memory | None:
        """What the optimiser of ``models: (k,)``, those parameters that are trained, goes on from."""

    def keep(self, name: str, memory: Memory) -> None:
        """Take what it has come to."""


class Nothing:
    """Optimisers that begin anew."""

    def recall(self, name: str, models: Models) -> Memory | None:
        """Nothing."""
        return None

    def keep(self, name: str, memory: Memory) -> None:
        """Never asked."""


@dataclass(frozen=True)
class Given:
    """SGD's ``momentum: (k,)`` from the method itself, which holds the last one afterwards."""

    momentum: Models

    def recall(self, name: str, models: Models) -> Memory | None:
        """The momentum, for the optimiser without a name."""
        return None if name else Memory({"momentum": self.momentum})

    def keep(self, name: str, memory: Memory) -> None:
        """Write it back."""
        self.momentum.materialise()
        for parameter, tensor in memory.state["momentum"].parameters():
            self.momentum.tensors[parameter].copy_(tensor)
