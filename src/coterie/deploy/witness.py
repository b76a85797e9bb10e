"""A site under the guard: it tells how two of its models compare, and keeps the one that it is told to keep.

What leaves it of each comparison is a number of validation examples, a mean difference and a sum of squares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from coterie.contract import Predictor
from coterie.deploy.sitefile import SiteFile
from coterie.deploy.unchanged import Changed
from coterie.engines.examples import example_losses
from coterie.engines.folder import SiteFolder
from coterie.engines.outpost import Order
from coterie.engines.sites import Sites
from coterie.engines.wire import Malformed
from coterie.evaluation import main_metric
from coterie.evaluation.telling import Floats, plain, told_of
from coterie.experiment.guarding import loss_of
from coterie.experiment.plan import guarded_variant
from coterie.models import Models
from coterie.privacy import Gate, Refused
from coterie.runs import RunDirectory, copy_model

logger = logging.getLogger("coterie.site")


@dataclass(frozen=True)
class Pair:
    """LOCAL and a guarded method, each an order of the run and round whose model is meant."""

    alone: Order
    own: Order

    @classmethod
    def of(cls, common: Mapping[str, Any], pair: Any) -> Pair:
        """From a message; raises ``Malformed``."""
        try:
            sides = [pair[side] for side in ("alone", "own")]
            agreed, rest = common.get("schemas") or {}, {key: common[key] for key in common if key != "schemas"}
            orders = [
                Order.of({**rest, "job": job, "round": round, "best": round, "schema": agreed.get(str(job[2]))})
                for job, round in sides
            ]
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise Malformed("a message about the guard lacks a part") from error
        return cls(*orders)


class Witness:
    """One site with the models of its own that it has kept.

    Parameters
    ----------
    site : SiteFile
        Who it is, and where its state lies.
    build : callable
        From an order, its data, method and model, ready to compute.
    gate : Gate
        What may enter and leave.
    keep : callable
        Puts a model into ``models/``, see `Outpost`.
    """

    def __init__(
        self,
        site: SiteFile,
        build: Callable[[Order], Sites],
        gate: Gate,
        keep: Callable[[Order, int, Predictor], None],
    ) -> None:
        self.site, self.build, self.gate, self.keep = site, build, gate, keep

    def answer(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """What goes back.

        Raises
        ------
        Malformed, Refused, CoterieError
            The message is none of ours, the policy does not allow an answer, or the site is not in order.
        """
        kind = "evidence" if "evidence" in tree else "verdict"
        wanted = tree[kind]
        if not isinstance(wanted, Mapping) or not isinstance(wanted.get("pairs"), list):
            raise Malformed("a message about the guard lacks a part")
        common = {key: wanted.get(key) for key in ("run", "config", "client", "number", "roster", "schemas")}
        common |= {"format": tree.get("format"), "exchange": kind}
        if common["client"] != self.site.client:
            raise Refused("the message is for another client")
        pairs = [Pair.of(common, pair) for pair in wanted["pairs"]]
        if kind == "verdict":
            keeps = [pair.get("keeps") == "personalised" for pair in wanted["pairs"]]
            kept = [self._kept(pair, personalised) for pair, personalised in zip(pairs, keeps, strict=True)]
            return {"client": self.site.client, "kept": kept}
        if not self.gate.policy.sends_evaluation:
            raise Refused("policy.evaluation does not allow evidence for the guard")
        return {"client": self.site.client, "evidence": [self._told(pair) for pair in pairs]}

    def _told(self, pair: Pair) -> list[list[float]] | None:
        """How both models of the reported rounds compare on the validation examples; None where one is not here."""
        try:
            sites = self.build(pair.own)
            self.gate.admit(sites.algorithm, int(sites.federation.train.n[0]))
        except Changed:
            raise
        except Refused:
            return None
        losses = list(self._losses(pair, sites))
        metric = main_metric(sites.federation.task, pair.own.config.get("metric"))
        return plain(told_of(losses[0], losses[1], loss_of(metric, "score" in losses[0]))) if len(losses) == 2 else None

    def _losses(self, pair: Pair, sites: Sites) -> Iterator[dict[str, Floats]]:
        """Losses of the validation examples ``(n,)`` by name, of each model that is here."""
        federation = sites.federation
        for order in (pair.alone, pair.own):
            folder = SiteFolder(self.site.state, order.run, order.job)
            if order.round in folder.predictors():
                predictor = _placed(folder.predictor(order.round, sites.stack.layout), sites.stack.device)
                found = example_losses(
                    sites.stack, predictor, federation.validation, federation.task, federation.classes
                )
                yield {name: values.cpu().numpy() for name, values in found.items()}

    def _kept(self, pair: Pair, personalised: bool) -> bool:
        """Put the model that is kept into ``models/`` under the guarded name; False where there is none here."""
        order = pair.own if personalised else pair.alone
        folder = SiteFolder(self.site.state, order.run, order.job)
        if (round := folder.nearest(order.best)) is None:
            return False
        layout = self.build(order).stack.layout
        self.keep(order, round, folder.predictor(round, layout))  # again: other runs may have written there meanwhile
        algorithm, variant, seed = pair.own.job
        target = (algorithm, guarded_variant(variant), seed)
        copy_model(RunDirectory(self.site.state.parent), order.job, target, self.site.client)
        logger.info("under the guard of %s the model of %s is kept", algorithm, order.job[0])
        return True


def _placed(predictor: Predictor, device: Any) -> Predictor:
    """A model that was read where the data are."""
    models: Models = predictor.models.to(device)
    weights = None if predictor.weights is None else predictor.weights.to(device)
    return replace(predictor, models=models, weights=weights)
