"""FEDORA: adaptive parameter propagation with selective regularisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import (
    Acquaintances,
    Algorithm,
    Anchored,
    Answers,
    Claims,
    Limit,
    Predictor,
    Server,
    Site,
    option,
    register,
)
from coterie.errors import CoterieError
from coterie.models import Models, stack_rows
from coterie.relations import (
    FOR_MANY,
    ClientGraph,
    cosines,
    gradient_similarity,
    name_order,
    no_propagation,
    parameter_similarity,
    principal_subspace,
    random_similarity,
    row_stochastic,
    solver_for,
    squared_distances,
    subspace_similarity,
    taking_rows,
)
from coterie.relations.subspaces import joint_matrix
from coterie.training import ProxPlace

_CONSTANT: dict[str, Any] = {"lambda_rule": "constant"}
_DENSE: dict[str, Any] = {"solver": "low_rank", "topk": 0}
_CHANGES: dict[str, Any] = {
    "temperature": ({"kind": "exp_cos", "topk": 0}, {"kind": "exp_cos", "topk": 0, "temperature": 1.0}),
    "topk": ({"topk": 2}, {"topk": 3}),
    "self_loop": ({"self_loop": False}, {"self_loop": True}),
    "rank": ({}, {"rank": 2}),
    "label_scale": ({}, {"label_scale": 30.0}),
    "exact": ({"topk": 2}, {"topk": 2, "exact": True}),
    "solver": ({"solver": "closed_form"}, {"solver": "iterative"}),
    "eigenvectors": (_DENSE, {**_DENSE, "eigenvectors": 1}),
    "lambda": (_CONSTANT, {**_CONSTANT, "lambda": 0.3}),
    "epsilon": ({"lambda_rule": "gain"}, {"lambda_rule": "gain", "epsilon": 0.1}),
    "lambda_rule": ({"lambda_rule": "gain"}, {"lambda_rule": "exp"}),
}


@register
@dataclass(frozen=True)
class Fedora(Algorithm):
    """FEDORA (Wu, Bao, Ainsworth, He, KDD 2023).

    min sum_k F_k(theta_k) / lambda_k + ||theta_k - th^_k||^2 + (alpha/2) sum_kk' (w_kk' / D_kk) ||th^_k - th^_k'||^2.
    The server propagates the models over a graph of data similarity, th^ = A theta with A = (1 - kappa)
    (I - kappa P)^-1, kappa = alpha / (1 + alpha); each client uses th^_k as far as it helps on its validation data.

    ``paper`` is the equations as printed; ``released`` the authors' code, which reproduces the published numbers:
    exp(10 cos) similarities, the two nearest clients without oneself, alpha 4, lambda_k = exp(dL / 2) where dL >= 0
    and else 0, and the pull with factor 1 after the optimiser's step.
    """

    name: ClassVar[str] = "fedora"
    title: ClassVar[str] = "FEDORA"
    paper: ClassVar[str] = "Wu et al., KDD 2023"
    cites: ClassVar[str] = "wu2023personalized"
    strengths: ClassVar[tuple[str, ...]] = ("lambda_k",)
    deviations: ClassVar[tuple[str, ...]] = (
        "The default variant follows the authors' program; the variant paper is the equations as printed.",
        "Similarities are singular values of the product of two subspaces, not raw inner products.",
        "The subspace is an exact SVD; the released program draws a randomised one.",
        "The gain ΔL is a difference of mean validation losses; the released program sums them over batches.",
        "λₖ is capped at 0.5 / η, so that no step overshoots.",
        "A client without validation data uses its training loss.",
        "With partial participation the server keeps every client's last upload; the graph is of clients met so far.",
        "Where the validation loss is not a number, λₖ is 0 under the rule exp and ε under gain.",
        "Under partial participation gradients are compared among those who answered, and who never answered together "
        "has no edge; the latecomers of a random graph begin with θ⁰.",
        "A newcomer's model is the minimiser without a data term of its own; the paper's way is attach: literal.",
    )
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "kind": "exp_cos", "topk": 2, "self_loop": False, "alpha": 4.0, "lambda_rule": "exp", "factor": 1.0,
            "prox_place": "after_step",
        },
        "paper": {
            "kind": "cos", "topk": 0, "self_loop": True, "alpha": 1.0, "lambda_rule": "gain", "factor": 2.0,
            "prox_place": "gradient",
        },
    }  # fmt: skip
    claims: ClassVar[Mapping[str, Claims]] = {
        "released": Claims(
            limits=(Limit(_CONSTANT | {"lambda": 0.0}, "local"),),
            objective={"theta": lambda at: at.value("lambda_k") / 2 * at.squared_distance("theta_hat")},
            anchored=Anchored(lambda lr: {**_CONSTANT, "lambda": 0.5 / lr, "factor": 2.0}, "theta_hat"),
            alone=_CONSTANT | {"lambda": 0.0},
            changes=_CHANGES,
            newcomers=("attach",),
            validation=True,
            unnormalised={"similarity": "what is known of the data, from which P is normalised"},
        ),
        "paper": Claims(
            limits=(Limit(_CONSTANT | {"lambda": 0.0}, "local"), Limit({"alpha": 0.0, "epsilon": 0.0}, "local")),
            objective={"theta": lambda at: at.value("lambda_k") * at.squared_distance("theta_hat")},
            anchored=Anchored(lambda lr: {**_CONSTANT, "lambda": 0.5 / lr}, "theta_hat"),
            alone={"epsilon": 0.0},
            changes=_CHANGES,
            newcomers=("attach",),
            validation=True,
            unnormalised={"similarity": "what is known of the data, from which P is normalised"},
        ),
    }

    variant: Literal["released", "paper"] = option(
        "released", "the authors' program, or the equations as printed; sets the defaults of others", paper="paper"
    )
    similarity: Literal["data", "parameters", "gradients", "random"] = option(
        "data", "what the graph compares", paper="data"
    )
    kind: Literal["cos", "exp_cos"] | None = option(None, "weight of an edge: the cosine w, or exp(τ w)", paper="cos")
    temperature: float = option(10.0, "τ of exp_cos")
    topk: int | None = option(None, "neighbours kept per client; 0 keeps all", paper="0", least=0)
    self_loop: bool | None = option(None, "whether a client is its own neighbour", paper="true")
    rank: int = option(1, "dimension p of each client's subspace", paper="1", least=1)
    label_scale: float = option(1.0, "factor of the one-hot labels beside the features", paper="1", least=0)
    alpha: float | None = option(None, "strength α of propagation, κ = α / (1 + α); inf is allowed", paper="1", least=0)
    solver: Literal["auto", "closed_form", "iterative", "low_rank", "sparse"] = option(
        "auto",
        "how propagation is solved: closed_form; iterative, to the same limit; for many clients low_rank (all "
        "neighbours) or sparse (topk). auto is closed_form up to 3000 clients, with a topk up to 1000",
        paper="closed_form",
    )
    eigenvectors: int = option(64, "eigenvectors that the solver low_rank keeps", least=1)
    exact: bool = option(
        False, "the minimiser of the objective where P is not symmetric, instead of the fixed point", paper="false"
    )
    lambda_rule: Literal["gain", "exp", "constant"] | None = option(
        None,
        "exp: 0 where the received model is worse, else exp(ΔL / 2); gain: max(ε, ΔL); constant: lambda",
        paper="gain",
    )
    lambda_: float = option(1.0, "λ of the rule constant", least=0)
    epsilon: float = option(1e-8, "floor ε of λₖ under the rule gain", paper="1e-8", least=0)
    factor: float | None = option(None, "the pull is factor · λₖ (θₖ - θ̂ₖ)", paper="2", least=0)
    prox_place: ProxPlace | None = option(
        None, "where the pull acts: in the gradient, after momentum or after the step", paper="gradient"
    )
    attach: Literal["one_sided", "literal"] = option(
        "one_sided", "how the model of a newcomer is found; literal adds its row to Eq. 6", paper="literal"
    )

    def check(self) -> None:
        """What a solver can do."""
        self.require(
            self.solver in ("auto", "closed_form") or self.alpha != inf, "solver", "closed_form where alpha is inf"
        )
        self.require(self.solver != "iterative" or not self.exact, "solver", "closed_form or sparse where exact is set")
        if self.solver in FOR_MANY:
            self.require(self.similarity == "data", "solver", "closed_form where the similarity is not that of data")
            self.require(self.attach == "one_sided", "solver", "closed_form where attach is literal")
            symmetric = self.topk == 0 and not self.exact
            self.require(
                self.solver != "low_rank" or symmetric, "solver", "low_rank with topk 0 and without exact only"
            )
            self.require(self.solver != "sparse" or self.topk != 0, "solver", "sparse with a topk of 1 or more only")

    @property
    def compares_on_validation(self) -> bool:
        """A constant lambda_k asks for no losses."""
        return self.lambda_rule != "constant"

    # --- at the server -------------------------------------------------------------------------------------------
    def setup(self, server: Server) -> None:
        """Nobody has been met: theta and th^ have a row for each client who has, and the graph is theirs."""
        server.met, server.connected, server.seen = Acquaintances(server.K), 0, torch.zeros(server.K, dtype=torch.bool)
        server.theta = server.theta_hat = server.initial_model()[:0]
        server.basis = server.features = server.similarity = None
        if self.how(server.K) in FOR_MANY:
            server.propagation = no_propagation(self.how(server.K))

    def welcome(self, server: Server, clients: Tensor) -> None:
        """Collect the newcomers' subspaces once; w_kk' is the sum of the singular values of U_k'^T U_k (Eq. 4, 5)."""
        if self.similarity != "data":
            self.meet(server, clients)
            return
        up = server.ask(self.describe, clients)
        outlines = server.ask(self.outline, up.clients) if server.unlabelled_newcomers else None
        self.meet(server, up.clients)
        server.basis = server.met.noted(server.basis, up.clients, up.basis)
        if outlines is not None:
            server.features = server.met.noted(server.features, outlines.clients, outlines.basis)
        server.similarity = None if self.how(len(server.met)) in FOR_MANY else subspace_similarity(server.basis)
        if bool(server.seen.any()):  # latecomers begin with what the others have learnt
            rows = server.met.row(up.clients)
            server.theta_hat[rows] = server.theta_hat.mixed(self.latecomers(server, rows))

    def latecomers(self, server: Server, rows: Tensor) -> Tensor:
        """Rows of A for those who pass nothing on yet, ``(r, m)``: th^_k = kappa P_k th^ + (1 - kappa) theta_k."""
        taken = self.graph.towards(server.basis[rows], server.basis, **self.members(server))
        return taking_rows(taken, rows, self.graph.alpha)

    def meet(self, server: Server, clients: Tensor) -> None:
        """Those who are new begin with theta^0."""
        first = server.initial_models(len(server.met.add(clients)))
        server.theta, server.theta_hat = stack_rows([server.theta, first]), stack_rows([server.theta_hat, first])
        if self.similarity == "random":
            server.similarity = _drawn(server)

    def round(self, server: Server, cohort: Tensor) -> None:
        """Send th^_k, collect theta_k, propagate (Eq. 6)."""
        here = server.met.among(cohort)
        up = server.ask(self.local_update, here, theta_hat=server.theta_hat[server.met.row(here)])
        self.relate(server, up)
        server.theta[server.met.row(up.clients)] = up.theta
        server.theta.mixed(server.propagation, out=server.theta_hat)

    def relate(self, server: Server, up: Answers) -> None:
        """Recompute A where the graph has changed: new uploaders, or a similarity of the models themselves."""
        known = bool(server.seen[up.clients].all()) and server.connected == len(server.met)
        server.seen[up.clients] = True
        if known and self.similarity in ("data", "random"):
            return
        if self.similarity in ("parameters", "gradients"):
            server.similarity = _compared(self.similarity, server, up)
        self.connect(server)

    def connect(self, server: Server) -> None:
        """A from the similarities; clients that have not uploaded yet pass nothing on."""
        server.connected = len(server.met)
        solver = self.how(server.connected)
        known = server.basis if solver in FOR_MANY else server.similarity
        server.propagation = self.graph.propagation(known, solver=solver, **self.members(server))

    @property
    def graph(self) -> ClientGraph:
        """The weights w_kk' and the strength of propagation."""
        return ClientGraph(
            kind=self.kind or "cos", temperature=self.temperature, topk=self.topk or 0, self_loop=bool(self.self_loop),
            alpha=self.alpha or 0.0, exact=self.exact, eigenvectors=self.eigenvectors,
        )  # fmt: skip

    def members(self, server: Server) -> dict[str, Tensor]:
        """Which of those who were met have a model to give, and the order by which ties go, ``(m,)`` each."""
        return {"seen": server.seen[server.met.clients], "order": server.met.by_name(server.names)}

    def how(self, K: int) -> str:
        """The solver for K clients; not every option has one for many."""
        possible = self.similarity == "data" and self.alpha != inf and self.attach == "one_sided"
        if self.solver == "auto":
            return solver_for(K, self.topk, symmetric=not self.exact) if possible else "closed_form"
        return self.solver

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """th^_new = sum_k w_new,k th^_k / sum_j w_new,j, the minimiser of Eq. 3 without a data term of the newcomer.

        ``literal`` is Eq. 6 with a row for the newcomer and the model that it has trained alone. Clients without labels
        compare inputs only.
        """
        if self.similarity != "data":
            return None
        if not (labelled or server.unlabelled_newcomers):
            raise CoterieError(
                "fedora: the members have not described their inputs alone, as newcomers without labels need it: "
                "train with newcomers.labelled false or both"
            )
        if not bool(server.seen.any()):
            raise CoterieError("fedora: no member has uploaded a model yet, so there is nothing to receive")
        up = server.ask(self.describe if labelled else self.outline, clients)
        described = server.basis if labelled else server.features
        if not labelled or self.attach == "one_sided":
            P = row_stochastic(self.graph.towards(up.basis, described, **self.members(server)), fallback="uniform")
            return {"theta": server.theta_hat.mixed(P)}
        alone, itself = server.ask(self.first_model, up.clients), float(self.rank)
        bases = up.basis[torch.isin(up.clients, alone.clients)]
        A = self.graph.joined(server.similarity, bases, described, own=itself, **self.members(server))
        return {"theta": server.theta.mixed_with_own(alone.theta, A)}

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """The similarities w_kk', and the propagation matrix, whose row k says what th^_k is made of.

        Nothing beyond the number of clients for which the solver is ``low_rank`` or ``sparse``: they exist so that no
        such matrix has to.
        """
        if self.how(server.K) in FOR_MANY or len(server.met) == 0:
            return {}
        unknown, own = torch.full((server.K, server.K), nan).double(), torch.eye(server.K).double()
        known = (
            {"similarity": server.met.among_all(server.similarity, unknown)} if server.similarity is not None else {}
        )
        if not bool(server.seen.any()):
            return known
        return {**known, "propagation": server.met.among_all(server.propagation, own)}

    def notes(self, server: Server) -> Mapping[str, float]:
        """How far th^ may be off: the bound of ``low_rank``, the residual of ``sparse``."""
        how = self.how(server.connected)
        if how == "low_rank":
            return {"propagation_bound": server.propagation.bound}
        return {"propagation_residual": server.propagation.residual} if how == "sparse" else {}

    # --- at the clients ------------------------------------------------------------------------------------------
    def describe(self, site: Site) -> Mapping[str, Any]:
        """U_k: the first p left singular vectors of features and labels."""
        joint = [
            joint_matrix(*site.train.client(row), site.classes, self.label_scale, site.task) for row in range(site.k)
        ]
        return {"basis": principal_subspace(joint, self.rank)}

    def outline(self, site: Site) -> Mapping[str, Any]:
        """U_k of the features alone."""
        joint = [joint_matrix(site.train.client(row)[0], None, site.classes) for row in range(site.k)]
        return {"basis": principal_subspace(joint, self.rank)}

    def first_model(self, site: Site) -> Mapping[str, Any]:
        """A newcomer's model before it has received any."""
        return {"theta": site.fit(site.theta).models}

    def local_update(self, site: Site, theta_hat: Models) -> Mapping[str, Any]:
        """E epochs of F_k(theta) + lambda_k ||theta - th^_k||^2 from the own theta_k (Eq. 2)."""
        site.lambda_k = self.adaptive_lambda(site, site.theta, theta_hat)
        site.theta = site.fit(site.theta, **self.pull(site.lambda_k, theta_hat)).models
        return {"theta": site.theta}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """Eq. 2 from th^_new, with a new lambda as often as in training."""
        theta_hat = theta = received["theta"]
        yield Predictor(theta)
        for first in range(0, epochs, site.epochs):
            pull = self.pull(self.adaptive_lambda(site, theta, theta_hat), theta_hat)
            count = min(site.epochs, epochs - first)
            for tuned in site.by_epoch(theta, count, batches=f"train {first}", **pull):
                yield Predictor(tuned)
            theta = tuned

    def pull(self, lambda_k: Tensor, theta_hat: Models) -> dict[str, Any]:
        """lambda_k ||theta - th^_k||^2 as `Site.fit` takes it, ``lambda_k: (k,)``."""
        strength = (self.factor or 0.0) * lambda_k
        return {"anchor": theta_hat, "strength": strength, "prox_place": self.prox_place or "gradient"}

    def adaptive_lambda(self, site: Site, theta: Models, theta_hat: Models) -> Tensor:
        """lambda_k, ``(k,)``, cut so that an explicit step does not overshoot."""
        return self.strength(self.gain(site, theta, theta_hat)).clamp(max=0.5 / site.lr)

    def gain(self, site: Site, theta: Models, theta_hat: Models) -> Tensor:
        """L_val(theta_k) - L_val(th^_k), ``(k,)``; differences within rounding are none."""
        if self.lambda_rule == "constant":
            return site.n.double() * 0.0
        own, received = site.loss("validation", theta), site.loss("validation", theta_hat)
        difference = own - received
        return torch.where(difference.abs() <= 1e-9 * own.abs().clamp(min=1.0), 0.0, difference)

    def strength(self, gain: Tensor) -> Tensor:
        """lambda_k from the gain, ``(k,)``: max(epsilon, dL) (Eq. 8), or exp(dL / 2) where dL >= 0, or constant."""
        if self.lambda_rule == "constant":
            return torch.full_like(gain, self.lambda_)
        if self.lambda_rule == "exp":
            return torch.where(gain >= 0, torch.exp(gain.clamp(max=1400.0) / 2), 0.0)
        return torch.where(gain > self.epsilon, gain, self.epsilon)  # NaN compares false


def _drawn(server: Server) -> Tensor:
    """Similarities of those who were met, ``(m, m)``, drawn from the seed in the order of names."""
    place = name_order(server.names).argsort()[server.met.clients]
    return random_similarity(server.K, torch.Generator().manual_seed(server.seed))[place][:, place]


def _compared(what: str, server: Server, up: Answers) -> Tensor:
    """Similarities of those who were met, ``(m, m)``: of models those among all who have uploaded one, of gradients
    newly those among the uploaders; NaN where none are known.
    """
    m, rows = len(server.met), server.met.row(up.clients)
    whole = torch.full((m, m), nan, dtype=torch.float64)
    if server.similarity is not None:
        whole[: len(server.similarity), : len(server.similarity)] = server.similarity
    if what == "parameters":
        theta = server.theta.clone()
        theta[rows] = up.theta
        rows = server.seen[server.met.clients].nonzero().squeeze(1)
        among = parameter_similarity(squared_distances(theta[rows].trained()))
    else:
        among = gradient_similarity(cosines((up.theta - server.theta[rows]).trained()))
    whole[rows.unsqueeze(1), rows] = among
    return whole
