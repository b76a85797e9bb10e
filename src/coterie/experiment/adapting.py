"""``coterie adapt``: newcomers to a run that is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coterie.config import Config, load_config, parse_config
from coterie.engines import Trained
from coterie.errors import CoterieError
from coterie.evaluation import summarise_newcomers
from coterie.experiment.display import busy
from coterie.experiment.experiment import Experiment
from coterie.experiment.newcomers import take_in
from coterie.experiment.plan import REFERENCE, Plan, System
from coterie.experiment.runner import stored_config
from coterie.runs import NewcomersDirectory, RunDirectory, newcomers_table
from coterie.runs.atomic import write_text
from coterie.runs.directory import ADAPTED
from coterie.yamltext import write_yaml

OWN_KEYS = ("newcomers", "device", "threads", "chunk", "executor", "save_models")
"""What may differ from the run: everything else is as it was trained."""


@dataclass(frozen=True)
class Adapted:
    """What newcomers got.

    Attributes
    ----------
    directory : Path
        Where tables and models lie.
    rows : list of dict
        One row a system and a way of joining, as in ``summary.json``.
    remarks : tuple of str
        What could not be done, by system.
    """

    directory: Path
    rows: list[dict[str, Any]]
    remarks: tuple[str, ...] = ()

    def table(self) -> Table:
        """The rows as a table for a terminal."""
        return newcomers_table(self.rows)


def adapt(
    run: str | Path,
    newcomers: str | Path | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    *,
    algorithms: Sequence[str] = (),
    data_dir: str | Path | None = None,
    output: str | Path | None = None,
    console: Console | None = None,
) -> Adapted:
    """Let newcomers join what a finished run has trained, with labels of their own or without.

    Parameters
    ----------
    run : path
        The run directory.
    newcomers : path or mapping, optional
        A configuration whose section ``federation`` describes the newcomers (all of its clients, or those that
        ``newcomers.clients`` names); other sections are not read. Default: the clients that the run held out.
    overrides : sequence of str
        ``key=value`` as after ``-s``, such as ``newcomers.epochs=5`` or ``device=cuda``.
    algorithms : sequence of str
        Methods to adapt, by name or label; default all.
    data_dir : path, optional
        Where data files lie, as for `coterie.run`.
    output : path, optional
        A new folder for the results; default ``RUN/adapted-<n>``.
    console : rich.console.Console, optional
        Where progress is shown; default nowhere.

    Raises
    ------
    CoterieError
        The run is not finished or kept no server, the newcomers' data are of another kind, or wrong input.
    """
    directory = RunDirectory.open(run)
    config = _configuration(directory, newcomers, overrides)
    experiment = Experiment(config, data_dir=None if data_dir is None else Path(data_dir))
    plan = experiment.plan
    jobs = [job for job in plan if job.system in _chosen(plan, algorithms)]
    servers = {job.key: Trained.load(directory.server(*job.key), experiment.config.device) for job in jobs}
    folder = NewcomersDirectory(_new_folder(directory, output))
    remarks = list[str]()
    for job in jobs:
        with busy(console, f"{job.system.label}, seed {job.seed}"):
            coming = experiment.newcomers(job.seed) or experiment.federation(job.seed)
            arrival = take_in(experiment, job, servers[job.key], coming, folder)
        said = [f"{client}: {reason}" for client, reason in arrival.failures] + list(arrival.remarks)
        remarks += [f"{job.system.label}: {text}" for text in said]
    tree = config.as_dict()
    write_text(folder.config, write_yaml({key: tree[key] for key in ("federation", "newcomers") if key in tree}))
    rows = summarise_newcomers(
        folder.read([job.key for job in jobs]),
        task=experiment.federation(jobs[0].seed).task,
        reference=plan.reference.key,
        labels={system.key: system.label for system in plan.systems},
    )
    folder.write_summary(rows)
    return Adapted(folder.path, rows, tuple(dict.fromkeys(remarks)))


def _configuration(
    directory: RunDirectory, newcomers: str | Path | Mapping[str, Any] | None, overrides: Sequence[str]
) -> Config:
    """The run's configuration with what may differ, and the newcomers' federation where one is given."""
    for text in overrides:
        key = text.partition("=")[0].strip().partition(".")[0]
        if key not in OWN_KEYS:
            raise CoterieError(
                f"-s {text}: newcomers come to what has been trained, so only {', '.join(OWN_KEYS)} may be set."
            )
        if newcomers is None and text.strip().startswith("newcomers.clients"):
            raise CoterieError(
                f"-s {text}: the newcomers are those that the run held out; for others name a configuration of theirs."
            )
    tree = dict(stored_config(directory))
    if newcomers is None:
        if not (tree.get("newcomers") or {}).get("clients"):
            raise CoterieError(
                f"{directory.path} held nobody out: name a configuration whose section federation describes the "
                "newcomers, or train with newcomers.clients."
            )
    else:
        theirs = load_config(newcomers).as_dict()
        tree["federation"] = theirs["federation"]
        tree["newcomers"] = {**(tree.get("newcomers") or {}), "clients": None, **(theirs.get("newcomers") or {})}
    return parse_config(tree, overrides, where=str(directory.config))


def _chosen(plan: Plan, names: Sequence[str]) -> list[System]:
    """The systems of these names or labels, all by default; LOCAL comes along, since a gain is a comparison with it."""
    known = {name for system in plan.systems for name in (system.algorithm, system.label)}
    for name in names:
        if name not in known:
            raise CoterieError(f"the run has no method {name}: it has {', '.join(sorted(known))}.")
    wanted = {*(names or known), REFERENCE}
    return [system for system in plan.systems if {system.algorithm, system.label} & wanted]


def _new_folder(directory: RunDirectory, output: str | Path | None) -> Path:
    if output is not None:
        path = Path(output)
        if path.exists():
            raise CoterieError(f"{path} exists already; choose another --output.")
        return path
    numbers = (path.name.removeprefix(f"{ADAPTED}-") for path in directory.path.glob(f"{ADAPTED}-*"))
    taken = [int(number) for number in numbers if number.isdecimal()]
    return directory.path / f"{ADAPTED}-{max(taken, default=0) + 1}"
