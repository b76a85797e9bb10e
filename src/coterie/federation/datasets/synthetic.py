"""Synthetic(alpha, beta), for any number of clients (Li et al., "Federated Optimization in Heterogeneous Networks")."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.special import ndtr

from coterie.federation.datasets.registry import Options, register_generator
from coterie.federation.examples import Examples, Rows
from coterie.federation.federation import client_names

TOGETHER = 1000  # clients whose rules are in memory at once; another number gives other data
MU, SIGMA = 4.0, 2.0  # the logarithm of a size, as the authors draw it
LEAST, BEYOND = 10, 40  # every client has 10 examples, the least that the rule natural takes; the authors add 50
MOST = 10_000.0  # where the tail is cut: one client in 200 is beyond


class Synthetic(Options):
    """Options of the source ``synthetic``."""

    clients: int = Field(30, ge=1, description="number of clients")
    alpha: float = Field(1.0, ge=0, description="variance of the means of the clients' rules; no label depends on it")
    beta: float = Field(1.0, ge=0, description="variance of the means of the clients' inputs: how these differ")
    iid: bool = Field(False, description="one rule and one distribution for all; alpha and beta have no effect")
    features: int = Field(60, ge=1, description="numbers in an input")
    classes: int = Field(10, ge=2, description="number of classes")
    examples: int = Field(100, ge=3, description="examples of a client, on average")
    sizes: Literal["equal", "lognormal"] = Field("equal", description="how the number of examples differs by client")

    @model_validator(mode="after")
    def _enough(self) -> Synthetic:
        if self.sizes == "lognormal" and self.examples < LEAST:
            raise ValueError(f"sizes: lognormal gives every client {LEAST} examples, so examples is at least {LEAST}")
        return self


@register_generator(
    "synthetic",
    "Synthetic(alpha, beta) of the FedProx paper: any number of clients, each with its own linear rule, 10 classes",
    options=Synthetic,
)
def synthetic(seed: int, options: Synthetic) -> Examples:
    """Inputs ``(N, features)`` float32 and classes, client after client; natural groups: ``client``.

    Client ``k`` has the rule ``y = argmax(softmax(W_k x + b_k))`` with the entries of ``W_k`` and ``b_k`` from
    ``N(u_k, 1)`` and ``u_k`` from ``N(0, alpha)``; its inputs are from ``N(v_k, S)``, where ``S`` is diagonal with
    ``S_jj = j^-1.2``, the entries of ``v_k`` are from ``N(B_k, 1)`` and ``B_k`` from ``N(0, beta)``. With ``iid`` one
    ``W`` and ``b`` from ``N(0, 1)`` serve all, and ``v = 0`` (section 5.1 of the paper).

    ``alpha`` and ``beta`` are variances, as the paper writes them. The authors' code takes them for standard
    deviations, which is the same for the published 0 and 1; its Synthetic(0.5, 0.5) is ``alpha: 0.25, beta: 0.25``.

    ``u_k`` is one number, so it adds the same to the scores of all classes, and no label depends on ``alpha``: clients
    differ by rules of their own and, with ``beta``, by their inputs.

    Sizes are all ``examples``, or lognormal: ``10 + (examples - 10) (L + 40) / E[L + 40]`` rounded down, ``L`` from
    lognormal(4, 2) cut at 10,000, so that no client has more than some 27 times ``examples``. With ``examples: 389``
    these are the authors' ``L + 50`` apart from the cut.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 1]))  # another stream than that of the division
    sizes = _sizes(options, generator)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    inputs = np.empty((starts[-1], options.features), dtype=np.float32)
    targets = np.empty(starts[-1], dtype=np.int64)
    shared = _rules(1, 0.0, options, generator) if options.iid else None
    for first in range(0, options.clients, TOGETHER):
        last = min(first + TOGETHER, options.clients)
        own = slice(starts[first], starts[last])
        weights, bias = shared or _rules(last - first, options.alpha, options, generator)
        _draw_inputs(inputs[own], sizes[first:last], options, generator)
        targets[own] = _labels(inputs[own], sizes[first:last], weights, bias)
    names = np.array(client_names(options.clients), dtype=object)
    return Examples(
        "synthetic",
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        classes=options.classes,
        groups={"client": np.repeat(names, sizes).tolist()},
    )


def _sizes(options: Synthetic, generator: np.random.Generator) -> Rows:
    """Examples of each client, ``(K,)``."""
    if options.sizes == "equal":
        return np.full(options.clients, options.examples, dtype=np.int64)
    drawn = np.minimum(generator.lognormal(MU, SIGMA, options.clients), MOST) + BEYOND
    more = (options.examples - LEAST) * drawn / (_mean_below(MOST) + BEYOND)
    return LEAST + np.floor(more).astype(np.int64)


def _mean_below(most: float) -> float:
    """The mean of ``min(L, most)`` for ``L`` from lognormal(4, 2)."""
    z = (math.log(most) - MU) / SIGMA
    return float(math.exp(MU + SIGMA**2 / 2) * ndtr(z - SIGMA) + most * ndtr(-z))


def _rules(
    k: int, alpha: float, options: Synthetic, generator: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights ``(k, features, C)`` and biases ``(k, C)`` of k clients."""
    u = math.sqrt(alpha) * generator.standard_normal((k, 1), dtype=np.float32)
    weights = generator.standard_normal((k, options.features, options.classes), dtype=np.float32)
    bias = generator.standard_normal((k, options.classes), dtype=np.float32)
    return weights + u[:, None], bias + u


def _draw_inputs(x: NDArray[np.float32], sizes: Rows, options: Synthetic, generator: np.random.Generator) -> None:
    """Fill ``x``, ``(n, features)``, with the inputs of some clients."""
    generator.standard_normal(dtype=np.float32, out=x)
    x *= np.arange(1, options.features + 1, dtype=np.float32) ** np.float32(-0.6)  # variances j^-1.2
    if not options.iid:
        centre = math.sqrt(options.beta) * generator.standard_normal((len(sizes), 1), dtype=np.float32)
        means = centre + generator.standard_normal((len(sizes), options.features), dtype=np.float32)
        x += np.repeat(means, sizes, axis=0)


def _labels(x: NDArray[np.float32], sizes: Rows, weights: NDArray[np.float32], bias: NDArray[np.float32]) -> Rows:
    """The class that each client's rule gives its inputs ``(n, features)``, ``(n,)``; one rule may serve all."""
    if len(weights) == 1:
        return np.asarray(np.argmax(x @ weights[0] + bias[0], axis=1), dtype=np.int64)
    scores = np.repeat(bias, sizes, axis=0)
    stops = np.cumsum(sizes).tolist()
    for rule, start, stop in zip(weights, [0, *stops], stops, strict=False):
        scores[start:stop] += x[start:stop] @ rule
    return np.asarray(np.argmax(scores, axis=1), dtype=np.int64)
