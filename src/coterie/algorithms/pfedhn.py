"""pFedHN: a hypernetwork at the server makes every client's model out of an embedding of the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.contract import Algorithm, Claims, Predictor, Server, Site, broadcast, option, register
from coterie.errors import CoterieError
from coterie.models import Models
from coterie.models.hypernetwork import EMBEDDINGS, generated, hypernetwork, pulled_back
from coterie.relations import normalised
from coterie.training.keys import generator, server_key


@register
@dataclass(frozen=True)
class PFedHN(Algorithm):
    """pFedHN (Shamsian et al., ICML 2021): min over phi and v_1 .. v_K of sum_k F_k(h(v_k; phi)).

    The server sends theta_k = h(v_k; phi); the client trains it to theta'_k and returns theta_k - theta'_k, which the
    server pulls back through h for a step of SGD in phi and the embeddings.
    """

    name: ClassVar[str] = "pfedhn"
    title: ClassVar[str] = "pFedHN"
    paper: ClassVar[str] = "Shamsian et al., ICML 2021"
    cites: ClassVar[str] = "shamsian2021pfedhn"
    differences: ClassVar[tuple[str, ...]] = ("change",)
    evaluated: ClassVar[str] = "model that the hypernetwork makes, without local training"
    deviations: ClassVar[tuple[str, ...]] = (
        "All clients of a round enter one step of the server, with the sum of their gradients; in the authors' code a "
        "round has one client, which participation.clients: 1 does.",
        "Clients train for the usual epochs; the authors' 50 batches are the option steps, drawn epoch by epoch and "
        "not as the first batch of a fresh shuffle each time.",
        "The authors' network has one linear layer more and no ReLU before its outputs; they also clip clients' "
        "gradients to 50, as training.clip does.",
        "Embeddings are drawn by the client's name, so that the order of clients changes nothing.",
        "Batch statistics are not generated: they travel, stay or are averaged as training.buffers says.",
        "A newcomer receives the hypernetwork once and trains its embedding from the members' mean, instead of an "
        "exchange with the server at each step.",
    )
    claims: ClassVar[Claims] = Claims(
        changes={"clip": ({}, {"clip": 0.01}), "layers": ({}, {"layers": 1}), "steps": ({}, {"steps": 1})},
        constant={"like": "only its buffers are averaged, its weights are those of theta^0"},
        exempt={
            "alone": "a client's model is what the hypernetwork makes, and never its own",
            "symmetric": "clients have different embeddings from the start",
            "objective": "the client trains F_k, but the server moves phi and not the model",
        },
    )

    embedding: int | None = option(None, "entries of a client's embedding; unset: 1 + K/4", paper="1 + K/4", least=1)
    hidden: int = option(100, "units of a hidden layer of the hypernetwork", paper="100", least=1)
    layers: int = option(3, "hidden layers of the hypernetwork; 0 makes it linear", paper="3", least=0)
    steps: int | None = option(None, "batches of local training; unset: the epochs of training", paper="50", least=1)
    server_lr: float = option(0.01, "learning rate of the hypernetwork", paper="0.01", least=0)
    embedding_lr: float | None = option(
        None, "learning rate of the embeddings; unset: server_lr", paper="0.01", least=0
    )
    server_momentum: float = option(0.9, "momentum at the server", paper="0.9", least=0, below=1)
    server_weight_decay: float = option(0.001, "weight decay at the server", paper="0.001", least=0)
    clip: float = option(50.0, "largest norm of the server's gradient", paper="50", above=0)

    # --- at the server -------------------------------------------------------------------------------------------
    def setup(self, server: Server) -> None:
        """phi and the embeddings v, ``(K, e)``, with their momenta; theta^0 lends its shapes and its buffers."""
        server.like = server.initial_model()
        if frozen := sorted(server.like.layout.frozen):
            raise CoterieError(
                f"algorithm {self.name} makes all weights of a model anew, so that {frozen[0]} of a frozen layer "
                "cannot stay as it is; choose another algorithm, or leave requires_grad on"
            )
        size = 1 + server.K // 4 if self.embedding is None else self.embedding
        draws = [generator(server.seed, 0, f"embedding:{name}").standard_normal(size) for name in server.names]
        v = torch.stack([torch.from_numpy(draw) for draw in draws]).to(server.like.device, server.like.dtype)
        seed = server_key(server.seed, 0, "hypernetwork")
        server.weights = hypernetwork(shapes_of(server.like), v, self.hidden, self.layers, seed)
        server.momentum = {name: torch.zeros_like(tensor) for name, tensor in server.weights.items()}
        server.norm = 0.0

    def round(self, server: Server, cohort: Tensor) -> None:
        """(phi, v) <- a step of SGD with sum_k (d theta_k / d (phi, v_k))^T (theta_k - theta'_k), clipped."""
        up = server.ask(self.local_update, cohort, theta=made(server.like, server.weights, cohort))
        gradients = pulled_back(server.weights, up.clients, dict(up.change.parameters()))
        server.norm = float(sum(gradient.double().square().sum() for gradient in gradients.values()) ** 0.5)
        scale = min(1.0, self.clip / (server.norm + 1e-6))  # as torch's clip_grad_norm_
        weights, momentum = dict(server.weights), dict(server.momentum)
        for name, gradient in gradients.items():
            direction = scale * gradient + self.server_weight_decay * weights[name]
            momentum[name] = self.server_momentum * momentum[name] + direction
            weights[name] = weights[name] - self.rate_of(name) * momentum[name]
        server.weights, server.momentum = weights, momentum
        server.like = server.like.with_buffers(up.change.mixed(normalised(server.n[up.clients])), torch.tensor([True]))

    def rate_of(self, name: str) -> float:
        """The learning rate of one of the server's weights."""
        return self.server_lr if name != EMBEDDINGS or self.embedding_lr is None else self.embedding_lr

    # --- at the clients ------------------------------------------------------------------------------------------
    def local_update(self, site: Site, theta: Models) -> Mapping[str, Any]:
        """theta'_k <- SGD(theta_k); back go theta_k - theta'_k and the new batch statistics."""
        trained = site.fit(theta, steps=self.steps).models
        return {"change": (theta - trained).with_buffers(trained, torch.ones(site.k, dtype=torch.bool))}

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """theta_k = h(v_k; phi), for clients that never took part too."""
        return {"theta": made(server.like, server.weights, clients)}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """What the hypernetwork has made."""
        return Predictor(offer["theta"])

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The whole hypernetwork, the mean embedding and the model that it makes; without labels nothing."""
        if not labelled:
            return None
        weights = {**server.weights, EMBEDDINGS: server.weights[EMBEDDINGS].mean(dim=0, keepdim=True)}
        theta = made(server.like, weights, torch.zeros(1, dtype=torch.int64))
        return {"theta": broadcast(theta), **{name: broadcast(tensor) for name, tensor in weights.items()}}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """In each epoch a local training, after which the embedding alone takes the server's step."""
        theta = received.pop("theta")
        yield Predictor(theta)
        weights = {name: tensor[0] for name, tensor in received.items()}  # all rows are what was sent to everyone
        v = weights[EMBEDDINGS].expand(site.k, -1)
        everyone, momentum = torch.arange(site.k), torch.zeros_like(v)
        for epoch in range(epochs):
            trained = site.fit(theta, epochs=1, batches=f"train {epoch}").models
            change = dict((theta - trained).parameters())
            (gradient,) = pulled_back({**weights, EMBEDDINGS: v}, everyone, change, [EMBEDDINGS]).values()
            scale = (self.clip / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
            momentum = self.server_momentum * momentum + scale * gradient + self.server_weight_decay * v
            v = v - self.rate_of(EMBEDDINGS) * momentum
            theta = made(trained, {**weights, EMBEDDINGS: v}, everyone)
            yield Predictor(theta)

    def notes(self, server: Server) -> Mapping[str, float]:
        """The norm of the server's last gradient before it is clipped."""
        return {"gradient_norm": server.norm}


def shapes_of(models: Models) -> dict[str, torch.Size]:
    """The shapes of the parameters of one model."""
    return {name: models.layout.shapes[name] for name in models.layout.parameters}


def made(like: Models, weights: Mapping[str, Tensor], clients: Tensor) -> Models:
    """What the hypernetwork makes for ``clients: (k,)``, with the buffers of ``like``: one row, or ``(k,)``."""
    tensors = {name: like.tensors[name].expand(len(clients), *like.layout.shapes[name]) for name in like.layout.buffers}
    return Models(like.layout, {**tensors, **generated(weights, clients, shapes_of(like))})
