"""A real site: from a message to its answer, with the data, the state and the policy that its ``site.yaml`` names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from coterie.config import Config, parse_config
from coterie.contract import Predictor
from coterie.deploy.data import site_federation
from coterie.deploy.own_table import OwnTable, prepared_together
from coterie.deploy.roster import Card
from coterie.deploy.schema import read_schema
from coterie.deploy.sitefile import SiteFile, policy_of
from coterie.deploy.unchanged import check_unchanged
from coterie.deploy.witness import Witness
from coterie.engines.outpost import Order, Outpost
from coterie.engines.sites import Sites, stack_for
from coterie.engines.wire import Malformed, Packet, packed
from coterie.errors import CoterieError
from coterie.experiment.handover import handed_over
from coterie.experiment.plan import REFERENCE, plan
from coterie.experiment.setting import check_model, engine_settings, resolve_device, slow_precision
from coterie.federation import Federation
from coterie.federation.datasets.sites import SitesSource
from coterie.federation.folds import Fold
from coterie.federation.schema import Schema
from coterie.models import ModelSpec
from coterie.privacy import Gate, Refused
from coterie.runs import RunDirectory, save_models
from coterie.runs.schemas import Schemas

logger = logging.getLogger("coterie.site")


def answer(packet: Packet, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Packet:
    """Flower's client app: what goes back, whatever came and whatever happens.

    The node's configuration, which the site itself writes, names ``site-file``. In Flower's simulation, which knows no
    sites but numbers them, the run's configuration names their folder instead.
    """
    client = str(node_config.get("client-id", ""))
    try:
        tree = packet.tree()
        site = SiteFile.read(_site_file(tree, node_config, run_config))
        client = site.client
        _listen(site.log_file)
        return LocalSite(site).answer(packet, tree)
    except Malformed as error:
        return packed({"client": client, "trouble": ["malformed", str(error)]})
    except Refused as error:
        return packed({"client": client, "trouble": ["refused", str(error)]})
    except CoterieError as error:
        logger.error("%s", error)
    except (Exception, SystemExit):  # the site's own code, which reads its data, may end in any way
        logger.exception("no answer")
    sentence = "its site.yaml, data or policy are not in order: coterie deploy check tells there"
    return packed({"client": client, "trouble": ["setup", sentence]})


def _site_file(tree: Mapping[str, Any], node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Path:
    if "site-file" in node_config:
        return Path(str(node_config["site-file"]))
    if "partition-id" not in node_config or not run_config.get("sites-folder"):
        raise CoterieError("the SuperNode was started without site-file in --node-config: use the site's start.sh")
    names = tree["hello"]["names"] if "hello" in tree else [tree.get("client")]
    name = names[int(node_config["partition-id"])] if "hello" in tree else names[0]
    return Path(str(run_config["sites-folder"])) / str(name) / "site.yaml"


class LocalSite:
    """One site on its own machine.

    Parameters
    ----------
    site : SiteFile
        What ``site.yaml`` says.

    Raises
    ------
    CoterieError
        Its policy is wrong, or its schema cannot be read.
    """

    def __init__(self, site: SiteFile) -> None:
        self.site = site
        self.policy = policy_of(site)
        self.schema = read_schema(site.schema_path) if site.schema_path.exists() else None
        self.gate = Gate(self.policy, site.state)

    def answer(self, packet: Packet, tree: Mapping[str, Any]) -> Packet:
        """What goes back."""
        if "hello" in tree:
            cards = self._cards(tree["hello"])
            return packed({"client": self.site.client, "coterie": version("coterie"), "cards": cards})
        if "prepare" in tree:
            if tree.get("client") != self.site.client:
                raise Refused("the message is for another client")
            return packed({"client": self.site.client, "summaries": self._summaries(tree["prepare"])})
        if "evidence" in tree or "verdict" in tree:
            return packed(Witness(self.site, self.build, self.gate, self.keep).answer(tree))
        return Outpost(self.site.client, self.site.state, self.build, self.gate, self.keep).answer(packet)

    def _cards(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        self._check_model(hello["config"])
        options, cards = prepared_together(hello["config"]), {}
        for seed in hello["seeds"]:
            card = (
                self._card(options, hello["config"], int(seed))
                if options is not None
                else Card.of(self.federation(hello["config"], int(seed)))
            )
            self.policy.check_examples(card.train)
            cards[str(int(seed))] = card.model_dump()
        return cards

    def _card(self, options: SitesSource, config: Mapping[str, Any], seed: int) -> Card:
        """What is known of a table before the sites have agreed on its inputs."""
        sizes = self._table(options, config, seed).sizes
        if options.regression:
            return Card(**sizes, shape=[], task="regression", classes=len(options.targets))
        return Card(**sizes, shape=[], task="classification", classes=options.classes or len(options.labels or ()))

    def _summaries(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What the policy lets the site tell of its table, by seed."""
        self.policy.check_preprocessing()
        options = prepared_together(wanted["config"])
        if options is None:
            raise Malformed("a message asks for sums that its configuration does not")
        tables = {int(seed): self._table(options, wanted["config"], int(seed)) for seed in wanted["seeds"]}
        return {str(seed): table.told(self.policy) for seed, table in tables.items()}

    def _table(self, options: SitesSource, config: Mapping[str, Any], seed: int) -> OwnTable:
        """The site's table, divided as a run of this configuration with this seed wants it."""
        return OwnTable.read(self.site, options, seed=_drawn(config, seed), fold=_fold(config))

    def federation(self, config: Mapping[str, Any], seed: int, order: Order | None = None) -> Federation:
        """The site's own data, divided likewise; an order may say how its table becomes inputs."""
        options = None if order is None else prepared_together(config)
        if options is not None and order is not None:
            return self._table(options, config, seed).federation(_schema(order))
        return site_federation(self.site, seed=_drawn(config, seed), schema=self.schema, fold=_fold(config))

    def build(self, order: Order) -> Sites:
        """Data, method and model of an order, ready to compute.

        Raises
        ------
        Refused
            The policy does not allow the method or the model; their code was not looked for. Or the data are no longer
            those that the site began the run with.
        CoterieError
            The configuration is wrong, or the data are not in order.
        """
        config = self._config(order)
        job = next((job for job in plan(config) if job.key == order.job), None)
        if job is None:
            for name in self._unlisted(order.config):  # one of them is meant: what it calls itself only its code says
                self.policy.check_algorithm(name)
            raise Malformed("a message names a method that its configuration has not")
        settings = replace(engine_settings(config, job), chunk=None, workers=None, client_memory=None)
        settings = replace(settings, threads=self.site.threads)
        federation = self.federation(order.config, job.seed, order)
        check_unchanged(self.site.state, order.run, job.seed, federation)
        model = ModelSpec(config.model.name, config.model.options)
        check_model(model, federation)
        if slow := slow_precision(config):
            logger.warning(slow)
        number = torch.tensor([order.number])
        stack = stack_for(federation, model, settings)
        return Sites(
            federation.to(stack.device), job.system.method, stack, settings, numbers=number, roster=order.roster
        )

    def _config(self, order: Order) -> Config:
        """The experiment, once the policy has allowed its model and the method that is meant.

        Classes that the policy does not list are left out of it, and so are not imported; LOCAL is in any experiment.
        """
        self._check_model(order.config)
        entries, unlisted = _entries(order.config), self._unlisted(order.config)
        if order.job[0] in map(_name, entries):
            self.policy.check_algorithm(order.job[0])
        left = [entry for entry in entries if _name(entry) not in unlisted] or [REFERENCE]
        config = parse_config({**order.config, "algorithms": left}, where="the message's configuration")
        config = config.model_copy(update={"device": self.site.device})
        return config.model_copy(update={"device": resolve_device(config)})

    def _unlisted(self, config: Mapping[str, Any]) -> list[str]:
        """The experiment's classes from elsewhere, ``module:Class``, that the policy does not list."""
        names = (_name(entry) for entry in _entries(config))
        return [name for name in names if ":" in name and name not in self.policy.algorithms]

    def _check_model(self, config: Mapping[str, Any]) -> None:
        """Ask the policy before anything is imported."""
        entry = config.get("model", {})
        name = entry.get("name") if isinstance(entry, Mapping) else entry
        if isinstance(name, str):
            self.policy.check_model(name)

    def keep(self, order: Order, round: int, predictor: Predictor) -> None:
        """Put the site's own model where others find it, ``models/`` beside the state; a guard's folds make none.

        How a table became inputs stands in the file itself: another run, which replaces no more than the models of its
        own methods, may bring the columns to other units.
        """
        if _fold(order.config) is not None and order.config.get("save_models") is False:
            return
        algorithm, variant, seed = order.job
        place = RunDirectory(self.site.state.parent)
        config = self._config(order)
        federation = self.federation(order.config, seed, order)
        facts = handed_over(federation, ModelSpec(config.model.name, config.model.options), predictor, federation.names)
        results = self._results(order, predictor)
        facts = [{**own, "schema": _schema_used(federation), "results": results} for own in facts]
        models = predictor.models.tensors
        folder = save_models(place, algorithm, variant, seed, [self.site.client], models, round=round, facts=facts)
        if order.schema is not None:  # that of all sites, for whoever wants to see it
            Schemas(_schema(order)).write(place.path, seed)
        away = "" if order.best in (None, round) else f" (round {order.best} is reported, in which this site was away)"
        logger.info("the model of %s, round %d%s, is in %s", algorithm, round, away, folder)
        if results:
            told = ", ".join(f"{metric} {value:.4g}" for metric, value in results.items())
            logger.info("on the test data of this site it has %s", told)

    def _results(self, order: Order, predictor: Predictor) -> dict[str, float]:
        """What a model reaches on the site's own test data, by metric; it stays here."""
        measured = self.build(order).measure([(torch.tensor([0]), predictor)]).get("test", {})
        return {name: float(value) for name, value in measured.items() if bool(value.isfinite().all())}


def _entries(config: Mapping[str, Any]) -> list[Any]:
    """The methods of a message's configuration; raises ``Malformed``."""
    entries = config.get("algorithms")
    if not isinstance(entries, list):
        raise Malformed("a message has a configuration without methods")
    return entries


def _name(entry: Any) -> str:
    """How an entry names its method; empty where it does not."""
    name = entry.get("name") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else ""


def _schema(order: Order) -> Schema:
    """What the sites have agreed on; raises ``Malformed``."""
    try:
        return Schema.model_validate(order.schema)
    except ValidationError as error:
        raise Malformed("a message does not say what the sites have agreed on") from error


def _schema_used(federation: Federation) -> Mapping[str, Any] | None:
    """How the table of the one client of a federation became inputs; None where its data are no table."""
    its_own: Mapping[str, Mapping[str, Any]] = federation.source.get("schemas") or {}
    return federation.source.get("schema") or next(iter(its_own.values()), None)


def _fold(config: Mapping[str, Any]) -> Fold | None:
    """The fold of a guard that a configuration is about; raises ``Malformed``."""
    section = config.get("federation")
    own = section.get("fold") if isinstance(section, Mapping) else None
    try:
        return None if own is None else Fold.model_validate(own)
    except ValidationError as error:
        raise Malformed("a message names a fold that there is not") from error


def _drawn(config: Mapping[str, Any], seed: int) -> int:
    """The seed of the division: that of the run, unless the experiment fixes one."""
    section = config.get("federation")
    own = section.get("seed") if isinstance(section, Mapping) else None
    return own if isinstance(own, int) else seed


def _listen(path: Path) -> None:
    """Write what happens into the site's own log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not any(isinstance(handler, RotatingFileHandler) for handler in logger.handlers):
        handler = RotatingFileHandler(path, maxBytes=5_000_000, backupCount=3, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s  %(levelname)s  %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logger.propagate = False
