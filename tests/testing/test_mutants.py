"""Broken methods are caught, and the message names the fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from coterie.algorithms.apfl import APFL
from coterie.algorithms.cfl import CFL
from coterie.algorithms.ditto import Ditto
from coterie.algorithms.fedamp import FedAMP
from coterie.algorithms.fedavg import FedAvg, FedAvgFT
from coterie.algorithms.fedfomo import FedFomo
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.local import Local
from coterie.algorithms.scaffold import Scaffold
from coterie.contract import Algorithm, Claims, Predictor, Server, Site, broadcast, option, unchanged
from coterie.errors import CoterieError
from coterie.models import Models, stack_rows
from coterie.relations import bipartition, cosines
from coterie.testing import ConformanceError, check_algorithm
from coterie.training import Step

# --- the faults of well-known libraries --------------------------------------------------------------------------


class DetachedDitto(Ditto):
    """The proximal term is computed from detached tensors: it has no gradient."""

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, epochs=self.personal_epochs).models
        return {"w": site.fit(w).models}


class UntrainedAPFL(APFL):
    """The private model receives no gradient."""

    def private_gradient(self, site: Site, step: Step, mixed: Models, away: Models, alpha: Tensor) -> Models:
        return super().private_gradient(site, step, mixed, away, alpha) * 0.0


class PositionsCFL(CFL):
    """The halves of a split are positions within the cluster, taken for numbers of clients."""

    def split(self, server: Server, cluster: int, clients: Tensor, w: Models, change: Models) -> None:
        second = bipartition(cosines(tensor for _, tensor in change.parameters()))
        for child, half in enumerate(((~second).nonzero().flatten(), second.nonzero().flatten())):
            server.children[cluster, child] = len(server.w)
            server.children = torch.cat([server.children, torch.full((1, 2), -1)])
            server.node[half] = len(server.w)
            server.w = stack_rows([server.w, w[half].mixed(self.shares(server, clients[half]))])
            server.direction = stack_rows([server.direction, change[half[:1]]])


class ForgetfulScaffold(Scaffold):
    """The control variates are computed and sent, and never stored."""

    def local_update(self, site: Site, w: Models, c: Models) -> Mapping[str, Any]:
        before = site.c_k.clone()
        answer = super().local_update(site, w, c)
        site.c_k = before
        return answer


class PeekingFedFomo(FedFomo):
    """Candidates are weighed on training data, redrawn as validation."""

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        honest = site.validation
        site.validation = site.train
        try:
            return super().local_update(site, *args, **payload)
        finally:
            site.validation = honest


# --- a fault for every other identity ----------------------------------------------------------------------------


class DoubledProx(FedProx):
    """mu ||.||^2 without the half."""

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        return {"w": site.fit(w, anchor=w, strength=2 * self.mu).models}


class UnsquaredProx(FedProx):
    """A norm written for a squared norm."""

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        theta = w
        for step in site.steps():
            away = theta[step.rows] - w[step.rows]
            pull = away * (self.mu / away.norm().clamp(min=1e-12))
            theta = step.update(theta, site.gradient(theta, step) + pull)
        return {"w": theta}


class WeakDitto(Ditto):
    """Half the pull that the strength stands for."""

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, anchor=w, strength=self.lambda_ / 2).models
        return {"w": site.fit(w).models}


class FreshDitto(Ditto):
    """At strength 0 the personal model starts from w, and so is not LOCAL."""

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        site.theta = site.fit(w, anchor=w, strength=self.lambda_).models
        return {"w": site.fit(w).models}


class ShrinkingFedAvg(FedAvg):
    """Weights that do not sum to 1."""

    def round(self, server: Server, cohort: Tensor) -> None:
        up = server.ask(self.local_update, cohort, w=broadcast(server.w))
        server.w = up.w.mixed(server.n[up.clients].double() / (server.n[up.clients].sum() + 1))


class OthersFedAvg(FedAvg):
    """The mean of all others, of whom a single client has none."""

    def round(self, server: Server, cohort: Tensor) -> None:
        up = server.ask(self.local_update, cohort, w=broadcast(server.w))
        server.w = up.w.mixed(torch.ones(len(up), dtype=torch.float64) / (len(up) - 1) * (len(up) - 1) / len(up))


class PreferringFedAvg(FedAvg):
    """The first in the list counts more."""

    def shares(self, server: Server, cohort: Tensor) -> Tensor:
        return 1.0 / (cohort.double() + 1.0)


class PreferringLocal(Local):
    """Clients start from their number."""

    def start(self, site: Site) -> None:
        site.theta = site.theta + site.clients.double() * 0.1


class MixingLocal(Local):
    """The first axis is averaged as if it were a batch."""

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        fitted = site.fit(site.theta).models
        site.theta = fitted * 0.9 + fitted.mixed(torch.ones(1, site.k, dtype=torch.float64) / site.k) * 0.1
        return {}


class CrowdedLocal(Local):
    """What a client does depends on how many it shares its site with."""

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, lr=site.lr / site.k).models
        return {}


class ThrowingLocal(Local):
    """Noise from torch's global generator."""

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta).models + torch.rand(site.k) * 0.01
        return {}


class RemindedLocal(Local):
    """A memory outside the state."""

    memory: ClassVar[list[int]] = []

    def round(self, server: Server, cohort: Tensor) -> None:
        if server.round == 1:
            self.memory.clear()
        self.memory.append(server.round)
        server.ask(self.local_update, cohort, sum=broadcast(torch.tensor([float(sum(self.memory))])))

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, lr=site.lr / float(payload["sum"][0])).models
        return {}

    def setup(self, server: Server) -> None:
        self.memory.clear()


@dataclass(frozen=True)
class DeafFedAvg(FedAvg):
    """An option that nothing reads."""

    lambda_: float = option(1.0, "read nowhere")


class TalkativeFedAvg(FedAvg):
    """The model is sent twice."""

    def round(self, server: Server, cohort: Tensor) -> None:
        up = server.ask(self.local_update, cohort, w=broadcast(server.w), again=broadcast(server.w))
        server.w = up.w.mixed(server.n[up.clients].double() / server.n[up.clients].sum())

    def local_update(self, site: Site, w: Models, again: Models | None = None) -> Mapping[str, Any]:
        return super().local_update(site, w)


class WhisperingFedAvg(FedAvg):
    """Numbers travel that nobody speaks of."""

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        return {**super().local_update(site, w), "seen": site.n.double()}


class FrozenFedAvg(FedAvg):
    """The average is not assigned."""

    def round(self, server: Server, cohort: Tensor) -> None:
        server.ask(self.local_update, cohort, w=broadcast(server.w))


class SharingFedAvg(FedAvg):
    """A second state that is the first."""

    def round(self, server: Server, cohort: Tensor) -> None:
        super().round(server, cohort)
        server._store.set("copy", server.w)


class SecretlyValidating(FedAvg):
    """Validation data decide, and nobody says so."""

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        return {"w": w + (site.fit(w).models - w) * (1.0 / (1.0 + site.loss("validation", w)))}


class EmptyMean(FedAvg):
    """A mean over validation examples, of which there may be none."""

    claims: ClassVar[Claims] = replace(FedAvg.claims, validation=True)

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        worth = torch.stack(
            [loss.mean() for loss in site.example_losses("validation", w).split(site.validation.n.tolist())]
        )
        return {"w": w + (site.fit(w).models - w) * (1.0 / (1.0 + worth))}


class Wasteful(Local):
    """The first batch is all that is trained on."""

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, steps=1).models
        return {}


class Bessel(Local):
    """A division by n - 1."""

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta).models * (site.n.double() / (site.n.double() - 1.0)) ** 1e-3
        return {}


class Impatient(FedAvg):
    """The server changes before anybody has answered."""

    def round(self, server: Server, cohort: Tensor) -> None:
        server.w = server.w * 0.99
        super().round(server, cohort)


class Counting(FedAvg):
    """Those who never answered count with their initial model."""

    def round(self, server: Server, cohort: Tensor) -> None:
        up = server.ask(self.local_update, cohort, w=broadcast(server.w))
        shares = server.n[up.clients].double() / server.n.sum()
        server.w = up.w.mixed(shares) + server.w * (1.0 - shares.sum())


class Unnormalised(FedAMP):
    """A matrix of shares whose rows sum to 2."""

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        return {"xi": 2.0 * server.xi}


class Remembering(FedAvgFT):
    """What was tuned for evaluation is kept."""

    def personal(self, site: Site, **offer: Any) -> Predictor:
        predictor = super().personal(site, **offer)
        _REMEMBERED.append(predictor.models.flat().mean())
        return predictor

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        return {"w": site.fit(w, lr=site.lr * (0.5 if _REMEMBERED else 1.0)).models}

    def setup(self, server: Server) -> None:
        _REMEMBERED.clear()
        super().setup(server)


_REMEMBERED: list[Tensor] = []


class Idle(FedAvg):
    """Evaluates the initial model."""

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        return {"w": broadcast(server.initial_model())}


class Serial(Local):
    """Trains less with one of the executors."""

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, epochs=1 if site.context.stack.executor == "loop" else None).models
        return {}


MUTANTS: list[tuple[type[Algorithm], str, str]] = [
    (DetachedDitto, "options", "the option lambda .*\n.*same models.*\n.*detached"),
    (DetachedDitto, "objective", "theta .*\n.*the stated term has no gradient\n.*detached"),
    (DetachedDitto, "anchored", "ends at the received w"),
    (UntrainedAPFL, "moves", "site.v of client-0 has moved .*\n.*\n.*receives no gradient"),
    (PositionsCFL, "relabelled", "permutes .*\n.*\n.*positions .* are taken for client numbers"),
    (ForgetfulScaffold, "moves", "site.c_k of client-0 has moved .*\n.*\n.*never assigned"),
    (PeekingFedFomo, "validation data", "as claimed\n.*the same\n.*drawn from the training data"),
    (DoubledProx, "objective", "acts 2 times as strongly"),
    (UnsquaredProx, "objective", "squared norm written as a norm"),
    (WeakDitto, "anchored", "the pull is scaled"),
    (FreshDitto, "limits", "predicts as with local"),
    (ShrinkingFedAvg, "alone", "a single client"),
    (OthersFedAvg, "single", "Diverged|K - 1"),
    (PreferringLocal, "symmetric", "equal models"),
    (PreferringFedAvg, "relabelled", "permutes their models"),
    (MixingLocal, "rows", "the state theta of client-0 alone"),
    (CrowdedLocal, "chunks", "how many clients its site has"),
    (Serial, "executors", "the executor loop"),
    (ThrowingLocal, "seeded", "same seed gives the same bits"),
    (RemindedLocal, "resumed", "outside server.x and site.x"),
    (DeafFedAvg, "options", "the option lambda"),
    (FrozenFedAvg, "moves", "server.w have moved"),
    (SharingFedAvg, "storage", "server.w and server.copy|server.copy and server.w"),
    (TalkativeFedAvg, "traffic", "8 clients move 1 Sigma each down"),
    (WhisperingFedAvg, "traffic", "bytes of meta"),
    (SecretlyValidating, "validation data", "claims.validation"),
    (EmptyMean, "without validation", "falls back|failed|NaN"),
    (Wasteful, "examples", "leaves examples out"),
    (Bessel, "sizes", "n - 1"),
    (Impatient, "participation", "before it has asked"),
    (Counting, "absent", "theta\\^0"),
    (Unnormalised, "relations", "sums to 2"),
    (Remembering, "evaluated", "leaves no trace"),
    (Idle, "learns", "gain 30 points"),
]


@pytest.mark.parametrize(("mutant", "identity", "message"), MUTANTS, ids=[f"{m.__name__}-{i}" for m, i, _ in MUTANTS])
def test_a_broken_method_is_caught(mutant: type[Algorithm], identity: str, message: str) -> None:
    with pytest.raises(ConformanceError, match=message) as caught:
        check_algorithm(mutant, only=[identity])
    first, second, *_ = str(caught.value).splitlines()
    assert first.startswith(mutant.name)
    assert first.endswith(f": the identity '{identity}' does not hold")
    assert second.startswith("  expected: ")


def test_every_identity_can_fail() -> None:
    from coterie.testing import IDENTITIES

    beyond_reach = {"test data"}  # no code of a method sees test data: a site has none
    assert {identity for _, identity, _ in MUTANTS} == set(IDENTITIES) - beyond_reach


@pytest.mark.full
@pytest.mark.parametrize("fault", [DetachedDitto, UntrainedAPFL, PositionsCFL, ForgetfulScaffold, PeekingFedFomo])
def test_the_known_faults_of_libraries_do_not_pass(fault: type[Algorithm]) -> None:
    with pytest.raises(ConformanceError):
        check_algorithm(fault)


# --- the checker itself ------------------------------------------------------------------------------------------


class Crashing(Local):
    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        raise ZeroDivisionError("in my own code")


def test_what_a_method_raises_is_a_finding() -> None:
    with pytest.raises(
        ConformanceError, match=r"test_mutants.py, line \d+: ZeroDivisionError: in my own code"
    ) as caught:
        check_algorithm(Crashing)
    (finding,) = caught.value.findings  # once, not for every question
    assert "raise ZeroDivisionError" in finding.traceback


class Ungiven(FedAvg):
    claims: ClassVar[Claims] = replace(FedAvg.claims, objective={"delta": unchanged})


def test_an_objective_of_a_model_that_there_is_not() -> None:
    with pytest.raises(ConformanceError, match="delta is neither: answers are w"):
        check_algorithm(Ungiven, only=["objective"])


class Forgotten(Ditto):
    """Trains a model and predicts with another that nothing ever moves."""

    def personal(self, site: Site, **offer: Any) -> Predictor:
        return Predictor(site.unmoved)

    def start(self, site: Site) -> None:
        site.unmoved = site.theta

    claims: ClassVar[Claims] = replace(Ditto.claims, constant={"unmoved": "forgotten"})


def test_what_is_evaluated_must_move() -> None:
    with pytest.raises(ConformanceError, match="override personal"):
        check_algorithm(Forgotten, only=["moves"])


def test_what_is_not_claimed_is_not_said_to_hold() -> None:
    verdicts = {finding.identity: finding.verdict for finding in check_algorithm("fedavg", only=["limits", "anchored"])}
    assert verdicts == {"limits": "unclaimed", "anchored": "unclaimed"}


class Excused(DetachedDitto):
    claims: ClassVar[Claims] = replace(Ditto.claims, exempt={"objective": "its term is a matter of belief"})


def test_an_exemption_has_a_reason_and_is_a_finding() -> None:
    (finding,) = check_algorithm(Excused, only=["objective"])
    assert (finding.verdict, finding.reason) == ("exempt", "its term is a matter of belief")


class Evasive(DetachedDitto):
    claims: ClassVar[Claims] = replace(Ditto.claims, exempt={"objective": " "})


def test_an_exemption_without_a_reason_is_refused() -> None:
    with pytest.raises(CoterieError, match="without a reason"):
        check_algorithm(Evasive, only=["rows"])


def test_an_unknown_identity_is_refused_with_the_nearest() -> None:
    with pytest.raises(CoterieError, match="did you mean 'symmetric'"):
        check_algorithm("fedavg", only=["symetric"])


def test_names_classes_and_instances_are_checked_with_all_variants() -> None:
    named = check_algorithm("fedora", only=["alone"])
    assert [finding.method for finding in named] == ["fedora (released)", "fedora (paper)"]
    (own,) = check_algorithm(Ditto(lambda_=0.2), only=["anchored"])
    assert own.verdict == "holds"


class OwnMethod(Algorithm):
    """A user's method that claims nothing, unregistered and without a name."""

    def round(self, server: Server, cohort: Tensor) -> None:
        server.ask(self.local_update, cohort)

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta).models
        return {}


def test_a_method_without_a_name_or_claims_is_checked_too() -> None:
    findings: list[Any] = []
    with pytest.raises(ConformanceError, match="8 clients move 1 Sigma each down"):  # the default claim on traffic
        check_algorithm(OwnMethod, report=findings.append)
    assert {finding.identity for finding in findings if finding.verdict == "broken"} == {"traffic"}
    assert all(finding.method == "OwnMethod" for finding in findings)


class Claimless(Local):
    claims: ClassVar[Any] = {"limits": ()}


def test_claims_that_are_none_are_refused() -> None:
    with pytest.raises(CoterieError, match="claims is dict, not coterie"):
        check_algorithm(Claimless, only=["seeded"])


@dataclass(frozen=True)
class Demanding(Algorithm):
    strength: float
    name: ClassVar[str] = "demanding"


def test_a_method_with_a_required_option_is_checked_as_an_instance() -> None:
    with pytest.raises(CoterieError, match=r"demanding cannot be made: .*'strength'; give its options defaults"):
        check_algorithm(Demanding, only=["seeded"])
