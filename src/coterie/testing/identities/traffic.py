"""What travels is what the definition says, and only those who take part communicate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from coterie.contract import Algorithm
from coterie.engines import RoundReport, Simulation
from coterie.models.rows import Layout
from coterie.testing.identities.limits import HALF
from coterie.testing.subject import BATCHES, Broken, Subject, played
from coterie.testing.toys import RAGGED

_HINT = (
    "what is sent and returned differs from claims.traffic: a model too many, one that is not needed, or a wrong claim"
)


@dataclass(frozen=True)
class Circumstances:
    """What a claim about traffic may depend on; see `coterie.contract.Federated`."""

    algorithm: Algorithm
    K: int
    m: int
    layout: Layout

    def share(self, part: str) -> float:
        """The share of the parameters in a part."""
        return sum(self.layout.shapes[name].numel() for name in self.layout.part(part)) / self.layout.d


def traffic(subject: Subject) -> None:
    """Models sent and received in each round are those claimed, for everyone and with half of the clients."""
    for participation in (None, HALF):
        settings: dict[str, Any] = {} if participation is None else {"participation": participation, "rounds": 5}
        sim, reports = played(subject, RAGGED, dtype="float32", training=BATCHES, **settings)
        for report in reports:
            _require_booked(subject, sim, report)
        _require_only_participants(sim, reports)


def _require_booked(subject: Subject, sim: Simulation, report: RoundReport) -> None:
    claims = subject.claims
    claim = claims.first_traffic if report.round == 1 and claims.first_traffic is not None else claims.traffic
    at = Circumstances(sim.algorithm, sim.K, len(report.answered), sim.stack.layout)
    found = Counter[str]()
    for row in report.ledger:
        if row["phase"] != "train":
            continue
        if row["kind"] == "model":
            found[row["direction"]] += row["bytes"]
        elif row["kind"] not in claim.summaries:
            expected = f"beside models {' and '.join(claim.summaries) or 'nothing'} may travel"
            raise Broken(expected, f"round {report.round} books {row['bytes']} bytes of {row['kind']}", _HINT)
    d = sim.stack.layout.d * 4
    for direction, amount in (("down", claim.down), ("up", claim.up), ("peer", claim.peers)):
        models = amount(at) if callable(amount) else amount
        want = round(len(report.answered) * models * d)
        if found[direction] != want:
            expected = f"{len(report.answered)} clients move {models:.4g} Sigma each {direction}: {want} bytes"
            raise Broken(expected, f"round {report.round} books {found[direction]} bytes", _HINT)


def _require_only_participants(sim: Simulation, reports: list[RoundReport]) -> None:
    silent = set(sim.names) - {name for report in reports for name in report.cohort}
    table = sim.ledger.per_client()
    spoke = table[(table.phase == "train") & table.direction.isin(["down", "up"]) & (table.bytes > 0)]
    for name in silent & set(spoke.client):
        raise Broken("only clients of the cohort are asked", f"{name} never took part and communicated", _HINT)
