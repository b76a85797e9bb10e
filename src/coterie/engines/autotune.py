"""Which executor is the fastest for a model on this machine: a few training steps of each, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.models import Stack
from coterie.models.stack import Executor
from coterie.training import BatchPlan, Objective, TrainingSettings, fit

CANDIDATES: tuple[Executor, ...] = ("auto", "stacked", "vmap", "loop")
CLIENTS, STEPS, REPEATS = 8, 4, 3
CLEARLY = 0.9
"""Another executor than that of the rule must take less than this share of its time: measurements are noisy."""


def fastest(
    stack_with: Callable[[Executor], Stack], data: ClientData, training: TrainingSettings, objective: Objective
) -> Stack:
    """The stack whose executor trains the first clients of ``data`` fastest; executors that cannot are left out."""
    best = stack_with("auto")
    limit = CLEARLY * _seconds(best, data, training, objective)
    for executor in CANDIDATES[1:]:
        if executor == best.executor:
            continue
        try:
            stack = stack_with(executor)
            seconds = _seconds(stack, data, training, objective)
        except CoterieError:
            continue
        if seconds < limit:
            best, limit = stack, seconds
    return best


def _seconds(stack: Stack, data: ClientData, training: TrainingSettings, objective: Objective) -> float:
    """The shortest time of a few steps of a few clients."""
    able = (data.n >= stack.smallest_batch).nonzero().flatten()[:CLIENTS].tolist()
    part = data.select(able)
    theta = stack.initial(0, part.k)
    keys = np.arange(part.k, dtype=np.uint64)
    plan = BatchPlan(
        part.n.cpu().numpy(), part.offsets[:-1].cpu().numpy(), keys, training.batch_size, steps=STEPS,
        smallest=stack.smallest_batch, dtype=stack.dtype, device=stack.device,
    )  # fmt: skip
    taken = []
    for _ in range(1 + REPEATS):
        begin = time.perf_counter()
        fit(
            stack, theta, part, plan, training, training.lr, objective,
            dropout_keys=torch.zeros(part.k, dtype=torch.int64, device=stack.device),
        )  # fmt: skip
        if stack.device.type == "cuda":
            torch.cuda.synchronize(stack.device)
        taken.append(time.perf_counter() - begin)
    return min(taken[1:])
