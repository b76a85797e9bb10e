"""``coterie adapt``: newcomers to a run that is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coterie.config import Config, load_config, parse_config
from coterie.engines import Trained
from coterie.engines.admission import check_fit
from coterie.errors import CoterieError
from coterie.evaluation import summarise_newcomers
from coterie.experiment.display import busy
from coterie.experiment.experiment import Experiment
from coterie.experiment.guarding_newcomers import guard_newcomers
from coterie.experiment.new_site import NewSite
from coterie.experiment.newcomers import chosen, take_in
from coterie.experiment.plan import REFERENCE, Job, Plan, System, shown
from coterie.experiment.runner import stored_config
from coterie.experiment.setting import device_here
from coterie.federation import Federation, build_federation
from coterie.federation.raw_table import is_table
from coterie.federation.schema import Schema
from coterie.runs import NewcomersDirectory, RunDirectory, newcomers_table
from coterie.runs.atomic import write_text
from coterie.runs.directory import ADAPTED
from coterie.runs.record import Key
from coterie.runs.schemas import Schemas
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
    newcomers: str | Path | Mapping[str, Any] | Config | None = None,
    overrides: Sequence[str] = (),
    *,
    algorithms: str | Sequence[str] = (),
    client: str | None = None,
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
        A configuration whose section ``federation`` describes the newcomers; its section ``newcomers`` may name
        some of the clients, and state what differs from the run's. Other sections are not read. Or the table of one
        new client (``.csv``, ``.parquet``), which becomes inputs as the members' tables did; where it lacks the column
        of the target, the client has no labels. Default: the clients that the run held out.
    overrides : sequence of str
        ``key=value`` as after ``-s``, such as ``newcomers.epochs=5`` or ``device=cuda``.
    algorithms : str or sequence of str
        Methods to adapt, by name or label; default all.
    client : str, optional
        What the owner of a table is called; default the file's name.
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
    site = _site(directory, newcomers, client)
    config = _configuration(directory, newcomers, overrides, site)
    experiment = Experiment(config, data_dir=None if data_dir is None else Path(data_dir))
    plan, arriving = experiment.plan, _Arriving(experiment, directory, newcomers is not None, site)
    wanted = [algorithms] if isinstance(algorithms, str) else algorithms
    jobs = [job for job in plan if job.system in _chosen(plan, wanted)]
    servers, remarks = _servers(directory, jobs, device_here(experiment.config))
    jobs = [job for job in jobs if job.key in servers]
    with busy(console, "Dividing the data"):
        check_fit(servers[jobs[0].key], arriving.of(jobs[0].seed))
    folder = NewcomersDirectory(_new_folder(directory, output))
    tree = config.as_dict()
    if site is not None:
        tree = {"federation": {"table": site.path.name, "client": site.name}, "newcomers": tree["newcomers"]}
    write_text(folder.config, write_yaml({key: tree[key] for key in ("federation", "newcomers") if key in tree}))
    measured = site is None or site.labelled(jobs[0].seed)
    for job in jobs:
        with busy(console, f"{job.system.label}, seed {job.seed}"):
            try:
                take_in(experiment, job, servers[job.key], arriving.of(job.seed), folder, measured=measured)
                arriving.note(folder.path, job.seed)
            except CoterieError as error:
                remarks.append(f"{job.system.label}, seed {job.seed}: {error}")
    keys, task = [job.key for job in jobs], arriving.of(jobs[0].seed).task
    decided = guard_newcomers(experiment, directory, folder, jobs, task)
    systems = shown([system for system in plan.systems if any(job.system is system for job in jobs)])
    rows = summarise_newcomers(
        folder.read([Job(system, seed).key for seed in plan.seeds for system in systems]),
        task=task,
        metric=experiment.config.metric,
        reference=plan.reference.key,
        labels={system.key: system.label for system in shown(plan.systems)},
    )
    remarks += [*folder.remarks(keys), *decided]
    if not measured and site is not None:
        remarks.insert(0, f"{site.path} has no column of the target, so that nothing can be measured")
    if (
        newcomers is not None
        and site is None
        and dict(stored_config(directory))["federation"]["source"] == config.federation.source
    ):
        remarks.append(
            f"newcomers and members are drawn from {config.federation.source}: some test examples may have been "
            "trained on; for a fair test hold clients out"
        )
    folder.write_summary(rows, remarks)
    if not rows and measured:
        raise CoterieError("; ".join(remarks))
    return Adapted(folder.path, rows, tuple(remarks))


class _Arriving:
    """The newcomers of a seed: those that the run held out, of the other configuration, or a table's owner."""

    def __init__(
        self, experiment: Experiment, directory: RunDirectory, from_elsewhere: bool, site: NewSite | None = None
    ) -> None:
        self._experiment, self._directory, self._from_elsewhere = experiment, directory, from_elsewhere
        self._site = site
        self._schema: Schema | None = None
        self._last: tuple[int, Federation] | None = None

    def of(self, seed: int) -> Federation:
        """The newcomers; a federation is not built twice in a row."""
        if self._last is None or self._last[0] != seed:
            if self._site is not None:
                found, self._schema = self._site.federation(seed)
            else:
                found = self._elsewhere(seed) if self._from_elsewhere else self._held_out(seed)
            self._check_targets(found, seed)
            self._last = (seed, found)
        return self._last[1]

    def _check_targets(self, found: Federation, seed: int) -> None:
        """Models answer in the units that their members' targets were brought to, so newcomers need the same."""
        schemas = Schemas.read(self._directory.path, seed)
        member = schemas.shared or next(iter(schemas.own.values()), None)
        members, newcomers = (
            None if normal is None else (normal.mean.tolist(), normal.std.tolist())
            for normal in (None if member is None else member.target_normal, found.train.target_normal)
        )
        if members != newcomers:
            said = "were" if newcomers is None else "were not"
            raise CoterieError(
                f"The targets of the members {said} standardised, unlike those of the newcomers: give data of the "
                "members' source, with the same federation.standardise_targets."
            )

    def note(self, folder: Path, seed: int) -> None:
        """Write beside the models how the columns of a new site's table became inputs."""
        if self._site is not None and self._schema is not None:
            Schemas(own={self._site.name: self._schema}).write(folder, seed)

    def _held_out(self, seed: int) -> Federation:
        held_out = self._experiment.newcomers(seed)
        assert held_out is not None  # the configuration was refused otherwise
        return held_out

    def _elsewhere(self, seed: int) -> Federation:
        config = self._experiment.config
        like = Schemas.read(self._directory.path, seed).tree or None
        whole = build_federation(config.federation, seed=seed, data_dir=self._experiment.data_dir, like=like)
        if config.newcomers is None or config.newcomers.clients is None:
            return whole
        fixed = config.federation.seed
        return whole.select(sorted(chosen(config.newcomers, whole.names, seed if fixed is None else fixed)))


def _servers(directory: RunDirectory, jobs: Sequence[Job], device: str) -> tuple[dict[Key, Trained], list[str]]:
    """What the jobs have trained, and remarks about those that cannot be read.

    Raises
    ------
    CoterieError
        None can be read; what the first of them says.
    """
    servers, problems = dict[Key, Trained](), list[tuple[Job, CoterieError]]()
    for job in jobs:
        try:
            servers[job.key] = Trained.load(directory.server(*job.key), device)
        except CoterieError as error:
            problems.append((job, error))
    if not servers:
        raise problems[0][1]
    return servers, [f"{job.system.label}, seed {job.seed}: {error}" for job, error in problems]


def _configuration(
    directory: RunDirectory,
    newcomers: str | Path | Mapping[str, Any] | Config | None,
    overrides: Sequence[str],
    site: NewSite | None,
) -> Config:
    """The run's configuration with what may differ, and the newcomers' federation where one is given."""
    for text in overrides:
        key = text.partition("=")[0].strip().partition(".")[0]
        if key not in OWN_KEYS:
            raise CoterieError(
                f"-s {text}: newcomers come to what has been trained, so only {', '.join(OWN_KEYS)} may be set."
            )
    tree = dict(stored_config(directory))
    own = dict(tree.get("newcomers") or {})
    if site is not None:
        labelled = site.labelled(tree["seeds"][0])
        tree["newcomers"] = {**own, "clients": None, "labelled": labelled}
        config = parse_config(tree, overrides, where=str(directory.config))
        if not labelled and config.newcomers is not None and True in config.newcomers.ways:
            raise CoterieError(f"newcomers.labelled: {site.path} has no labels: it lacks the column of the target.")
        return config
    if newcomers is not None:
        theirs = newcomers if isinstance(newcomers, Config) else load_config(newcomers)
        stated = {} if theirs.newcomers is None else theirs.newcomers.model_dump(exclude_unset=True)
        tree["federation"], tree["newcomers"] = theirs.as_dict()["federation"], {**own, "clients": None, **stated}
        return parse_config(tree, overrides, where=str(directory.config))
    if not own.get("clients"):
        raise CoterieError(
            f"{directory.path} held nobody out: name a configuration whose section federation describes the "
            "newcomers, or train with newcomers.clients."
        )
    config = parse_config(tree, overrides, where=str(directory.config))
    if config.newcomers is None or config.newcomers.clients != own["clients"]:
        raise CoterieError(
            "newcomers.clients: the newcomers are those that the run held out; name a configuration for others."
        )
    return config


def _site(
    directory: RunDirectory, newcomers: str | Path | Mapping[str, Any] | Config | None, client: str | None
) -> NewSite | None:
    """The new site, where its table is given."""
    if not isinstance(newcomers, str | Path) or not is_table(Path(newcomers)):
        if client is not None:
            raise CoterieError("--client names the owner of a table (.csv or .parquet), and none is given.")
        return None
    path = Path(newcomers)
    return NewSite(directory, path, client or path.name.partition(".")[0])


def _chosen(plan: Plan, names: Sequence[str]) -> list[System]:
    """The systems of these names or labels, all by default; LOCAL comes along, since a gain is a comparison with it."""
    known = {name for system in plan.systems for name in (system.algorithm, system.label)}
    for name in names:
        if name not in known:
            raise CoterieError(f"the run has no method {name}: it has {', '.join(sorted(known))}.")
    wanted = {*(names or known), REFERENCE}
    return [system for system in plan.systems if {system.algorithm, system.label} & wanted]


def _new_folder(directory: RunDirectory, output: str | Path | None) -> Path:
    """Make the folder, which nobody else then takes."""
    try:
        if output is not None:
            Path(output).mkdir(parents=True)
            return Path(output)
        numbers = (path.name.removeprefix(f"{ADAPTED}-") for path in directory.path.glob(f"{ADAPTED}-*"))
        number = max((int(number) for number in numbers if number.isdecimal()), default=0)
        while True:
            number += 1
            with suppress(FileExistsError):
                (directory.path / f"{ADAPTED}-{number}").mkdir()
                return directory.path / f"{ADAPTED}-{number}"
    except FileExistsError as error:
        raise CoterieError(f"{output} exists already; choose another --output.") from error
    except OSError as error:
        place = output or directory.path
        raise CoterieError(f"Cannot make a folder in {place}: {error.strerror}; choose another --output.") from error
