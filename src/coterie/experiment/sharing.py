"""Which jobs share a stack, and how they go on together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from coterie.engines import Member, Shared
from coterie.engines.sites import device_of, stack_for
from coterie.experiment.costs import step_operations
from coterie.experiment.plan import Job
from coterie.experiment.setting import engine_settings
from coterie.experiment.work import Observer, carry_out
from coterie.models import Stack, build_model
from coterie.runs import RunDirectory

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment

STEP_OPERATIONS = 3e7
"""Floating-point operations of one training step of all rows: up to here its calls cost more than its arithmetic."""


def chosen_share(experiment: Experiment) -> int:
    """How many seeds of a system share a stack: what the configuration says, else as many as make it faster.

    That depends on the arithmetic of a step: the calls of a step cost the same for any number of rows, so that seeds
    of small models come almost for nothing, while large ones fill a core by themselves and divide better among
    processes. One seed where a method is not Coterie's own, since the independence of its rows has not been tested
    here; where clients train one after the other; and on a GPU, unless the configuration says otherwise.
    """
    config = experiment.config
    if config.engine != "simulation":  # the clients of a job are spread over a cluster
        return 1
    if config.share is not None:
        return config.share
    own = all(type(system.method).__module__.startswith("coterie.") for system in experiment.plan.systems)
    if len(config.seeds) == 1 or not own or config.device != "cpu" or executor_of(experiment) == "loop":
        return 1
    return max(1, min(len(config.seeds), int(STEP_OPERATIONS / step_operations(experiment))))


def executor_of(experiment: Experiment) -> str:
    """How the model is run, as far as that shows without measuring."""
    return stack_of(experiment).executor


def measured_executor(experiment: Experiment, job: Job, threads: int) -> str:
    """Which executor trains the first clients of ``job`` fastest on so many threads."""
    settings, before = engine_settings(experiment.config, job), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        federation = experiment.federation(job.seed).to(device_of(settings))
        return stack_for(federation, experiment.model, settings).executor
    finally:
        torch.set_num_threads(before)


def stack_of(experiment: Experiment) -> Stack:
    """The model with the executor that the configuration names, or that suits it without measuring."""
    config, federation = experiment.config, experiment.federation(experiment.config.seeds[0])
    model, shape = experiment.model, federation.feature_shape
    return Stack(
        lambda: build_model(model.name, shape, federation.classes, federation.task, **model.options),
        shape,
        executor="auto" if config.executor == "fastest" else config.executor,
        dtype=getattr(torch, config.dtype),
        precision=config.precision,
    )


def grouped(experiment: Experiment, jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs, in the order in which they run; those in one list share a stack."""
    share, seeds = experiment.config.share or 1, experiment.plan.seeds
    if share == 1:
        return [[job] for job in jobs]
    left = {job.key: job for job in jobs}
    blocks = [seeds[first : first + share] for first in range(0, len(seeds), share)]
    together = [
        [left[key] for seed in block if (key := Job(system, seed).key) in left]
        for block in blocks
        for system in experiment.plan.systems
    ]
    return [group for group in together if group]


def carry_out_together(
    experiment: Experiment, jobs: Sequence[Job], directory: RunDirectory, observer: Observer
) -> bool:
    """`carry_out` of each of the jobs, which share a stack; whether all came to their end.

    Raises
    ------
    CoterieError
        What stopped a job; the others have saved and stopped before.
    """
    if len(jobs) == 1:
        return carry_out(experiment, jobs[0], directory, observer)

    def of(job: Job) -> Callable[[Member], bool]:
        return lambda member: carry_out(experiment, job, directory, observer, member.join)

    return all(Shared([of(job) for job in jobs]).hold())
