"""Newcomers of an experiment: who is held out, and what becomes of them after training."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from coterie.config import Config, NewcomersConfig
from coterie.engines import Admission, Admitted, Trained
from coterie.errors import CoterieError
from coterie.evaluation.tables import NEWCOMERS
from coterie.experiment.guarding import guards
from coterie.experiment.handover import handed_over
from coterie.experiment.plan import Job, settings
from coterie.experiment.setting import newcomers_settings
from coterie.federation import Federation
from coterie.federation.build import HeldOut
from coterie.runs import NewcomersDirectory, save_losses
from coterie.training import TrainingSettings
from coterie.training.keys import generator

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment


def held_out(section: NewcomersConfig | None, seed: int) -> HeldOut | None:
    """Tells which clients are held out, by their names; None where nobody is."""
    if section is None or section.clients is None:
        return None

    def out(names: Sequence[str]) -> list[int]:
        found = chosen(section, names, seed)
        return [] if len(set(found)) >= len(names) else found  # which `divide` refuses

    return out


def divide(section: NewcomersConfig | None, federation: Federation, seed: int) -> tuple[Federation, Federation | None]:
    """The members who train, and the newcomers who are held out; None where the section names nobody.

    A number or a fraction is drawn by ``seed``, so that all methods meet the same newcomers.

    Raises
    ------
    CoterieError
        A name that no client has, or nobody would be left to train.
    """
    if section is None or section.clients is None:
        return federation, None
    out = set(chosen(section, federation.names, seed))
    if len(out) >= federation.k:
        raise CoterieError(
            f"newcomers.clients takes all {federation.k} clients, so that nobody is left to train: hold out fewer."
        )
    members = [client for client in range(federation.k) if client not in out]
    return federation.select(members), federation.select(sorted(out))


def chosen(section: NewcomersConfig, names: Sequence[str], seed: int) -> list[int]:
    """The clients that ``section.clients`` names, or draws by ``seed``; raises CoterieError for an unknown name."""
    wanted = section.clients
    if isinstance(wanted, list):
        for name in wanted:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"the first is called {names[0]}."
                raise CoterieError(f"newcomers.clients: there is no client {name}: {hint}")
        return [list(names).index(name) for name in wanted]
    assert wanted is not None
    k = len(names)
    count = wanted if isinstance(wanted, int) else max(1, int(wanted * k + 1e-9))
    if count >= k:
        return list(range(k))
    drawn = generator(seed, 0, "newcomers").choice(k, size=count, replace=False)
    return [int(client) for client in drawn]


def training_of(config: Config, job: Job) -> TrainingSettings:
    """How newcomers train: as the members of the job, changed where ``newcomers.training`` states something else."""
    own = None if config.newcomers is None else config.newcomers.training
    if own is None:
        return job.system.training
    return replace(job.system.training, **{key: getattr(settings(own), key) for key in own.model_fields_set})


def take_in(
    experiment: Experiment,
    job: Job,
    trained: Trained,
    newcomers: Federation,
    directory: NewcomersDirectory,
    *,
    measured: bool = True,
) -> None:
    """Let the newcomers join what a job has trained; their table, their models and remarks go into ``directory``.

    Their table is empty where nothing can be ``measured``, for want of targets. Where a method is guarded, what
    newcomers with labels lose on their validation examples is kept for `guard_newcomers`.

    Raises
    ------
    CoterieError
        Data of another kind, or a file that cannot be written.
    """
    section = experiment.config.newcomers or NewcomersConfig()
    plain = replace(newcomers_settings(experiment.config, job), training=training_of(experiment.config, job))
    admission = Admission(trained, newcomers, job.system.method, experiment.model, plain)
    frames, remarks = [], list[str]()
    for labelled in section.ways:
        kind = "with labels" if labelled else "without labels"
        try:
            admitted = admission.admit(labelled=labelled, epochs=section.epochs)
        except CoterieError as error:
            remarks += [f"newcomer {failure.client} {kind}: {failure.reason}" for failure in admission.failures]
            remarks.append(f"newcomers {kind}: {error}")
            continue
        if admitted is None:
            remarks.append(f"newcomers {kind}: the method has no model for them")
            continue
        remarks += [f"newcomer {failure.client} {kind}: {failure.reason}" for failure in admitted.failures]
        if measured:
            frames.append(pd.DataFrame(_rows(job, newcomers, labelled, admitted), columns=list(NEWCOMERS)))
            if labelled and guards(experiment.plan):
                n, losses = admission.validation_losses(admitted)
                save_losses(directory.joined(labelled), *job.key, admitted.names, n, losses)
        if experiment.config.save_models:
            facts = handed_over(newcomers, experiment.model, admitted.predictor, admitted.names)
            directory.save_models(
                *job.key, labelled, admitted.names, admitted.models.tensors, round=trained.round, facts=facts
            )
    table = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(NEWCOMERS))
    directory.write(*job.key, table, remarks)


def _rows(job: Job, newcomers: Federation, labelled: bool, admitted: Admitted) -> Iterator[tuple[object, ...]]:
    n = newcomers.train.n.tolist()
    for metric, values in admitted.values.items():
        for epoch, row in enumerate(values.tolist()):
            for name, size, value in zip(newcomers.names, n, row, strict=True):
                yield (*job.key, labelled, epoch, name, size, metric, value)
    for what, counts in admitted.traffic.items():
        for name, size, count in zip(newcomers.names, n, counts.tolist(), strict=True):
            yield (*job.key, labelled, 0, name, size, f"bytes_{what}", float(count))
