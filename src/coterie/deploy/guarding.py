"""The guard of real sites: folds are further runs of the same sites, which send a few numbers of every comparison.

A site that has no model of a reported round, or may not tell, gives no evidence of that fold. With none at all it goes
by what is known of the others, as a client without validation examples does in a simulation.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.engines import SitesLost
from coterie.engines.outpost import FORMAT
from coterie.engines.wire import Packet, packed, trouble_of
from coterie.errors import CoterieError
from coterie.evaluation import Evidence, reported
from coterie.evaluation.telling import Telling, plain, pooled, read
from coterie.experiment.guarding import Decision, Guard, fold_config, loss_of
from coterie.experiment.plan import Job
from coterie.runs import History, RunDirectory
from coterie.runs.atomic import write_json
from coterie.runs.directory import SITES

if TYPE_CHECKING:
    from coterie.deploy.serving import Deployed

FILE = "evidence.json"
"""In the run directory, and in that of each fold."""

logger = logging.getLogger("coterie.server")


class SitesGuard(Guard):
    """The guard of one experiment at real sites, once its methods have been trained."""

    experiment: Deployed

    def _train(self) -> list[RunDirectory]:
        """Ask for what the run itself tells while its sites are there; then the folds."""
        if self.experiment.federation(self.experiment.plan.seeds[0]).validation.total:
            self._hear(self.experiment, self.directory)
        return super()._train()

    def _fold(self, index: int, names: set[str]) -> RunDirectory:
        """One fold, trained and asked about now or before."""
        path = self.directory.guard_fold(index)
        if path.exists() and not (path / SITES).exists():  # a kill left it before anything in it was worth anything
            shutil.rmtree(path)
        place = super()._fold(index, names)
        if not (place.path / FILE).exists():
            fold = self._experiment(index, names)
            fold.roster.load(place.path)
            self._hear(fold, place)
        return place

    def _experiment(self, index: int, names: set[str]) -> Deployed:
        config = fold_config(self.experiment.written, index, names)
        return self.experiment.once_more(config, f"fold {index + 1} of {self.settings.folds}")

    @property
    def _loss(self) -> str | None:
        federation = self.experiment.federation(self.experiment.plan.seeds[0])
        return loss_of(self._metric, federation.task == "classification" and federation.classes == 2)

    # --- evidence ------------------------------------------------------------------------------------------------
    def _hear(self, experiment: Deployed, place: RunDirectory) -> None:
        """Ask the sites how their models of a run compare, unless that is known, and write it down.

        Raises
        ------
        SitesLost
            Fewer sites than the quorum have answered.
        """
        if (place.path / FILE).exists():
            return
        tables = self._read(place, History.read).frames([job.key for job in experiment.plan])
        rounds = {key: found.round for key, found in reported(
            tables.clients, self._metric, experiment.config.report).items()}  # fmt: skip
        jobs = [job for job in self._guarded() if job.key in rounds and self._alone(job).key in rounds]
        pairs = [{"alone": [key, rounds[key]], "own": [job.key, rounds[job.key]]}
                 for job in jobs for key in [self._alone(job).key]]  # fmt: skip
        found: dict[str, list[Any]] = {}
        answered = 0
        for name, answer in ask(experiment, "evidence", dict.fromkeys(experiment.roster.names, pairs)):
            try:
                answered += not isinstance(answer, str)
                found[name] = [
                    None if told is None else plain(told) for told in self._heard(experiment, jobs, name, answer)
                ]
            except CoterieError as error:
                logger.warning("the guard has no evidence of %s: %s", name, error)
        if jobs and answered < experiment.terms.quorum:
            raise SitesLost(
                f"only {answered} sites have told the guard how their models compare, and {experiment.terms.quorum} "
                "are needed: start them, then go on from the last checkpoint"
            )
        write_json(place.path / FILE, {"jobs": [list(job.key) for job in jobs], "clients": found})

    def _heard(
        self, experiment: Deployed, jobs: Sequence[Job], name: str, answer: Mapping[str, Any] | str
    ) -> list[Telling | None]:
        """What a site has sent of each job; raises ``CoterieError``."""
        if isinstance(answer, str) or "trouble" in answer:
            raise CoterieError(answer if isinstance(answer, str) else answer["trouble"])
        told = answer.get("evidence")
        if not isinstance(told, list) or len(told) != len(jobs):
            raise CoterieError("it sent no evidence")
        loss, client = self._loss, experiment.roster.names.index(name)
        examples = [int(experiment.federation(job.seed).validation.n[client]) for job in jobs]
        return [None if one is None else read(one, loss, n) for one, n in zip(told, examples, strict=True)]

    def _evidence(self, job: Job, places: list[RunDirectory]) -> tuple[tuple[str, ...], Evidence]:
        names, told = self.experiment.roster.names, [self._known(place, job) for place in places]
        clients = [[part for known in told if (part := known.get(name)) is not None] for name in names]
        return names, pooled(clients, self._loss)

    def _decide(self, places: list[RunDirectory]) -> Iterator[Decision]:
        """As in a simulation; but a model that a site has not got, as where it refuses the method, it cannot keep."""
        for decision in super()._decide(places):
            known = self._known(self.directory, decision.job) if self.directory in places else {}
            there = np.array([known.get(name, ()) is not None for name in decision.names])
            yield replace(decision, judged=replace(decision.judged, keep=decision.judged.keep & there))

    def _known(self, place: RunDirectory, job: Job) -> dict[str, Telling | None]:
        """What the sites that answered have told of a job: None where one has not got both models.

        Raises
        ------
        CoterieError
            The file is damaged.
        """
        path, key, loss = place.path / FILE, list(job.key), self._loss
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if key not in content["jobs"]:
                return {}
            number = content["jobs"].index(key)
            told = {name: parts[number] for name, parts in content["clients"].items()}
            return {name: None if parts is None else read(parts, loss) for name, parts in told.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, CoterieError) as error:
            raise CoterieError(f"{path} is damaged: delete it, and the sites are asked again") from error

    def _guarded(self) -> Iterator[Job]:
        return (job for job in self.experiment.plan if job.system.guarded)

    # --- verdict -------------------------------------------------------------------------------------------------
    def _settle(self, decisions: Sequence[Decision]) -> None:
        """Tell each site which of its models it keeps; what cannot be told is in the table."""
        reached = self._reached(History.read(self.directory))
        verdicts: dict[str, list[dict[str, Any]]] = {name: [] for name in self.experiment.roster.names}
        for decision in decisions:
            rows, jobs = decision.rows, (self._alone(decision.job), decision.job)
            if any(job.key not in reached for job in jobs):
                continue
            told = {side: [job.key, reached[job.key].round] for side, job in zip(("alone", "own"), jobs, strict=True)}
            for name, keeps in zip(rows["client"], rows["keeps"], strict=True):
                verdicts[name].append({**told, "keeps": keeps})
        told_to = set()
        for name, answer in ask(self.experiment, "verdict", verdicts):
            kept = answer.get("kept") if isinstance(answer, Mapping) else None
            if isinstance(kept, list) and all(kept):
                told_to.add(name)
            else:
                trouble = answer if isinstance(answer, str) else answer.get("trouble", "it has none")
                logger.warning("%s does not keep what the guard decided: %s", name, trouble)
        if untold := [name for name, pairs in verdicts.items() if pairs and name not in told_to]:
            logger.warning("what the guard decided is not in models/ of %s: %s says it", ", ".join(untold),
                           self.directory.guard)  # fmt: skip


def ask(
    experiment: Deployed, kind: str, pairs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, Mapping[str, Any] | str]]:
    """Send every site that is there its ``pairs``; the sites' answers, or why there is none, as they come in."""
    terms, post, names = experiment.terms, experiment.post, experiment.roster.names
    schemas = {str(seed): agreed.schema.as_dict() for seed, agreed in experiment.roster.agreed.items()}
    post.wait(terms.quorum, terms.patience)
    here = post.reachable()
    packets = {}
    for number, name in enumerate(names):
        if name in here and pairs[name]:
            common = {"run": experiment.roster.run, "config": experiment.told, "number": number, "roster": len(names)}
            common |= {"schemas": schemas} if schemas else {}
            packets[name] = packed({
                "format": FORMAT, "client": name, kind: {**common, "client": name, "pairs": list(pairs[name])},
            })  # fmt: skip
    left = set(packets)
    for name, packet in post.exchange(packets, terms.deadline, f"guard, {kind}"):
        left.discard(name)
        yield name, _opened(name, packet)
    for name in sorted(left):
        yield name, f"it did not answer within {terms.deadline:g} s (sites.deadline)"


def _opened(name: str, packet: Packet | str) -> Mapping[str, Any] | str:
    """What a site has sent, its ``trouble`` as one sentence, or what is wrong with the message."""
    if isinstance(packet, str):
        return packet
    try:
        tree = packet.tree()
    except CoterieError as error:
        return str(error)
    if tree.get("client") != name:
        return "it answered another question"
    if (trouble := trouble_of(tree)) is not None:
        return {"trouble": trouble[1]}
    return tree
