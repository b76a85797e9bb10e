"""The guard for newcomers: with labels of its own, each keeps its personalised model or the one that it trained alone.

The rule is that of the run, of which each newcomer is one more client: the members' evidence in ``guard.csv`` says
what gains are usual. Without labels there is nothing to judge by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from coterie.config import NewcomersConfig
from coterie.evaluation import Evidence, Judgement, main_metric
from coterie.evaluation.guard import judge_newcomers
from coterie.evaluation.tables import Task
from coterie.experiment.guarding import Decision, compared, loss_of, section
from coterie.experiment.plan import Job, guarded
from coterie.runs import (
    Losses,
    NewcomersDirectory,
    RunDirectory,
    copy_model,
    has_losses,
    load_guard,
    load_losses,
    save_guard,
)

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment


def guard_newcomers(
    experiment: Experiment, run: RunDirectory, folder: NewcomersDirectory, jobs: Sequence[Job], task: Task
) -> list[str]:
    """Decide for the newcomers of these jobs, whose tables and losses are in ``folder``; what was decided.

    Their tables and models under the guard are written there, and ``guard.csv``.

    Raises
    ------
    CoterieError
        A file is damaged or cannot be written.
    """
    wanted = [job for job in jobs if job.system.guarded]
    if not wanted:
        return []
    remarks, decisions = list[str](), list[Decision]()
    if False in (experiment.config.newcomers or NewcomersConfig()).ways:
        remarks.append("guard: newcomers without labels have nothing to judge by, so they get what the method gives")
    decided = load_guard(run)
    for job in wanted:
        pair = _losses(folder, Job(experiment.plan.reference, job.seed)), _losses(folder, job)
        if pair[0] is None or pair[1] is None:
            continue
        decision = _decision(experiment, job, pair[0], pair[1], _members(decided, job), task)
        _enter(experiment, folder, decision)
        decisions.append(decision)
        remarks.append(_sentence(decision))
    if decisions:
        save_guard(RunDirectory(folder.path), pd.concat([decision.rows for decision in decisions]))
    return remarks


def _losses(folder: NewcomersDirectory, job: Job) -> Losses | None:
    """What newcomers with labels lose on their validation examples; None where none have joined."""
    place = folder.joined(labelled=True)
    return load_losses(place, *job.key) if has_losses(place, *job.key) else None


def _members(decided: pd.DataFrame, job: Job) -> Evidence:
    """What the run's own validation said of the members."""
    algorithm, variant = guarded(job.system).key
    rows = decided[
        (decided["algorithm"] == algorithm) & (decided["variant"] == variant) & (decided["seed"] == job.seed)
    ]
    n, difference, error = (rows[name].to_numpy(dtype=np.float64) for name in ("n", "difference", "standard_error"))
    return Evidence(n.astype(np.int64), difference, error**2)


def _decision(experiment: Experiment, job: Job, alone: Losses, own: Losses, members: Evidence, task: Task) -> Decision:
    """What newcomers keep; one of whose two models failed keeps the other."""
    names = tuple(dict.fromkeys([*own.names, *alone.names]))
    both = [name for name in names if name in own.names and name in alone.names]
    found = _unknown(len(names))
    if both and own.values:
        pair = _of(alone, both), _of(own, both)
        known = compared([pair], loss_of(main_metric(task, experiment.config.metric), "score" in own.values))
        at = np.array([names.index(name) for name in both])
        for whole, part in zip(
            (found.n, found.difference, found.variance), (known.n, known.difference, known.variance), strict=True
        ):
            whole[at] = part
    judged = judge_newcomers(found, members, section(experiment.config).confidence)
    keep = judged.keep.copy()
    for place, name in enumerate(names):
        if name not in both:
            keep[place] = name in own.names
    return Decision(job, names, found, Judgement(judged.expected, judged.confidence, keep))


def _unknown(count: int) -> Evidence:
    return Evidence(np.zeros(count, dtype=np.int64), np.full(count, np.nan), np.full(count, np.nan))


def _of(losses: Losses, names: Sequence[str]) -> Losses:
    """The losses of these clients, in this order."""
    rows = np.concatenate([np.flatnonzero(losses.owner == losses.names.index(name)) for name in names])
    place = {losses.names.index(name): position for position, name in enumerate(names)}
    owner = np.array([place[one] for one in losses.owner[rows].tolist()], dtype=np.int64)
    return Losses(tuple(names), owner, {name: values[rows] for name, values in losses.values.items()})


def _enter(experiment: Experiment, folder: NewcomersDirectory, decision: Decision) -> None:
    """The table and the models under the guard: what each newcomer keeps, at the cost of both."""
    job, alone = decision.job, Job(experiment.plan.reference, decision.job.seed)
    target = Job(guarded(job.system), job.seed).key
    keeps = dict(zip(decision.names, decision.judged.keep.tolist(), strict=True))
    kept = []
    for one in (job, alone):
        table = folder.read([one.key])
        table = table.loc[table["labelled"]]
        mine = np.array([keeps.get(name, True) == (one is job) for name in table["client"]], dtype=bool)
        kept.append(table.loc[mine | table["metric"].str.startswith("bytes_").to_numpy(bool)])
    joined = pd.concat(kept).assign(algorithm=target[0], variant=target[1])
    whole = ["algorithm", "variant", "seed", "labelled", "epoch", "client", "n", "metric"]
    folder.write(*target, joined.groupby(whole, sort=False)["value"].sum(min_count=1).reset_index())
    for client, keep in keeps.items():
        copy_model(folder.joined(labelled=True), (job if keep else alone).key, target, client)


def _sentence(decision: Decision) -> str:
    """What newcomers keep under the guard of one system."""
    label, seed = guarded(decision.job.system).label, decision.job.seed
    if len(decision.names) > 1:
        alone = int((~decision.judged.keep).sum())
        return (
            f"{label}, seed {seed}: {alone} of {len(decision.names)} newcomers keep the model that they trained alone"
        )
    what = "its personalised model" if decision.judged.keep[0] else "the model that it trained alone"
    return f"{label}, seed {seed}: {decision.names[0]} keeps {what}{_reason(decision.found, decision.judged)}"


def _reason(found: Evidence, judged: Judgement) -> str:
    n, confidence = int(found.n[0]), float(judged.confidence[0])
    if not np.isfinite(confidence):
        return ", since nothing is known of a gain"
    return f": by {n} validation examples, a gain is believed with {confidence:.0%}"
