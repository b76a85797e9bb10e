"""The server of a federation of real sites: it runs or resumes one experiment, whose clients are the sites."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from coterie.config import Config, SitesConfig, parse_config
from coterie.deploy.guarding import SitesGuard
from coterie.deploy.own_table import prepared_together
from coterie.deploy.preparing import prepare
from coterie.deploy.regreeted import Regreeted
from coterie.deploy.roster import Roster
from coterie.deploy.suited import check_suited
from coterie.engines import Engine
from coterie.engines.remote import Post, RemoteEngine, Terms
from coterie.engines.wire import Packet, packed
from coterie.errors import CoterieError
from coterie.evaluation import further_metrics, main_metric
from coterie.experiment.experiment import Experiment
from coterie.experiment.guarding import Guard
from coterie.experiment.plan import Job
from coterie.experiment.result import Result
from coterie.experiment.runner import read_config, stored_config
from coterie.experiment.setting import engine_settings
from coterie.federation import Federation
from coterie.runs import RunDirectory

if TYPE_CHECKING:
    from coterie.engines.flower import Grid

logger = logging.getLogger("coterie.server")

Posting = Callable[[Roster, Packet], Post]
"""From who the sites are and what a new one is asked, what carries messages to them."""


class Deployed(Experiment):
    """An experiment whose clients are real sites.

    Parameters
    ----------
    config : Config
        With the section ``sites``.
    posting : callable
        Makes what carries the messages.
    bind : bool
        See `Roster`.

    Raises
    ------
    CoterieError
        The configuration names no sites, or something that real sites do not know, or two methods of one name.
    """

    def __init__(self, config: Config, posting: Posting, *, bind: bool = True) -> None:
        if config.sites is None:
            raise CoterieError("the experiment has no section sites: coterie deploy init writes one")
        check_suited(config)
        self.sites: SitesConfig = config.sites
        # as it was written, since how a site executes is its own affair; where the server tracks is the server's
        self.written = config
        self.told = config.model_copy(update={"tracking": None}).as_dict()
        self.columns = prepared_together(self.told)  # of tables that the sites prepare together
        settled = {"engine": "flower", "device": "cpu", "save_models": False, "checkpoint_every": 1, "processes": 1}
        super().__init__(config.model_copy(update=settled))
        self.config = self.config.model_copy(update={"save_losses": False})  # no example's loss leaves a site
        self._check_names()
        self.roster = Roster(tuple(self.sites.names), tuple(config.seeds), bind)
        hello = packed({"hello": {"names": self.roster.names, "seeds": list(config.seeds), "config": self.told}})
        self.post = posting(self.roster, hello)

    def _check_names(self) -> None:
        """A site that does not load a class could take another method of the same name for it."""
        known: dict[str, type] = {}
        for system in self.plan.systems:
            if known.setdefault(system.algorithm, type(system.method)) is not type(system.method):
                raise CoterieError(
                    f"algorithms: two different methods are called {system.algorithm}, and sites tell methods by name: "
                    "give the class of your own another name"
                )

    @property
    def terms(self) -> Terms:
        """What is expected of the sites."""
        return Terms(self.sites.deadline, self.sites.needed, self.sites.patience)

    def _divided(self, seed: int) -> tuple[Federation, Federation | None]:
        start = self.sites.start or len(self.roster.names)
        if len(self.roster.cards) < start:
            self.post.wait(start, self.sites.patience)
        if len(self.roster.cards) < start:
            raise CoterieError(
                f"{', '.join(self.roster.missing)} did not come within {self.sites.patience:.0f} s (sites.patience), "
                f"and the first round waits for {start} sites (sites.start, by default all): start them, mend those "
                "that were not let in, or begin with fewer"
            )
        if self.columns is not None and not self.roster.agreed:
            self.roster.agreed = prepare(self.post, self.terms, self.roster, self.columns, self.told)
        return self.roster.federation(seed), None

    def _check_engine(self) -> None:
        """The engine is this one."""

    def _check_metric(self, federation: Federation) -> None:
        """Whether the task has it; of which examples it is defined the sites alone can say."""
        main_metric(federation.task, self.config.metric)
        further_metrics(self.config.metrics, self.config.metric, federation.task, federation.classes)

    def _check_folds(self) -> None:
        """The sites alone have data to divide."""

    def engine(self, job: Job) -> Engine:
        """The engine of one job, at round 0."""
        return RemoteEngine(
            self.federation(job.seed), job.system.method, self.model, engine_settings(self.config, job),
            post=self.post, terms=self.terms, run=self.roster.run, job=job.key, config=self.told,
            known=lambda: self.roster.federation(job.seed),
        )  # fmt: skip

    def guard(self, directory: RunDirectory, console: Console | None) -> Guard:
        """The guard of the run in ``directory``, whose methods have been trained."""
        return SitesGuard(self, directory, console)

    def once_more(self, config: Config, title: str) -> Deployed:
        """Another experiment with the same sites, those that are there; each says anew what its data are like."""
        sites = self.sites.model_copy(update={"start": self.sites.needed})

        def posting(roster: Roster, hello: Packet) -> Post:
            return Regreeted(self.post, roster, hello, self.terms, title)

        return Deployed(config.model_copy(update={"sites": sites}), posting, bind=False)

    def resume(self, directory: RunDirectory, *, console: Console | None = None) -> Result:
        """Go on with the run in ``directory`` and the sites that it knows; see `Experiment.resume`."""
        self.roster.load(directory.path)
        return super().resume(directory, console=console)

    def write_config(self, directory: RunDirectory) -> None:
        """Store who the sites are, what they have agreed on, and, last of all, the configuration."""
        for seed, agreed in self.roster.agreed.items():
            directory.write_schema(seed, {"schema": agreed.schema.as_dict()})
        self.roster.save(directory.path)
        super().write_config(directory)

    def run_or_resume(self, output: Path, console: Console | None) -> Result:
        """Run into a new directory, or go on with what is in it.

        Raises
        ------
        CoterieError
            See `Experiment.run` and `Experiment.resume`.
        """
        if not (output / "config.yaml").exists():
            return self.run(output=output, overwrite=output.exists(), console=console)
        directory = RunDirectory.open(output)
        if (directory.path / "summary.json").exists():
            raise CoterieError(f"{output} holds a finished run: choose another output")
        stored = parse_config(stored_config(directory), where=str(directory.config))
        if stored.sites is None or stored.sites.names != self.sites.names:
            raise CoterieError(f"{output} is a run of other sites: choose another output")
        if stored.name != self.config.name:
            raise CoterieError(
                f"{output} is a run of the experiment {stored.name}, not of {self.config.name}: to go on with it, name "
                "its file (bash run.sh RUN FILE)"
            )
        logger.info("going on with the run in %s", output)
        return self.resume(directory, console=console)


def serve(grid: Grid, run_config: Mapping[str, Any]) -> None:
    """Flower's server app.

    The run's configuration has ``experiment`` (a YAML file), ``output`` (the run directory; one that was interrupted is
    continued) and, in Flower's simulation only, ``sites-folder``.

    Raises
    ------
    CoterieError
        Wrong input, or the sites did not come.
    """
    from coterie.engines.flower import FlowerPost

    _speak()
    console = Console(file=sys.stdout, width=120)

    def posting(roster: Roster, hello: Packet) -> Post:
        return FlowerPost(grid, roster.names, hello, roster.meet, _watch)

    experiment = Deployed(
        read_config(str(run_config.get("experiment") or "experiment.yaml")),
        posting,
        bind=not run_config.get("sites-folder"),
    )
    result = experiment.run_or_resume(Path(str(run_config.get("output") or "run")), console)
    console.print(result.table())
    for remark in result.remarks:
        console.print(remark, highlight=False, soft_wrap=True, markup=False)
    console.print(f"Everything about this run is in {result.directory}", highlight=False, soft_wrap=True, markup=False)


def _speak() -> None:
    """Write what happens to the standard output, which Flower takes to whoever watches the run."""
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", datefmt="%H:%M:%S"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _watch(title: str, answered: Sequence[str], asked: int) -> None:
    """Say who has answered, once all have, and who is asked."""
    if not answered:
        logger.info("%s: asking %d site%s", title, asked, "" if asked == 1 else "s")
    else:
        logger.info("%s: %s has answered, %d of %d", title, answered[-1], len(answered), asked)
