"""What a method sends and receives, measured by the engine's ledger in a few rounds with tiny synthetic clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from coterie.contract import Algorithm
from coterie.engines import Settings, Simulation
from coterie.federation import ClientData, Federation
from coterie.models.factory import ModelSpec
from coterie.training import TrainingSettings

CLIENTS, ROUNDS, FEATURES, CLASSES = 8, 12, 12, 4
MODEL = ModelSpec("mlp", {"hidden": [16]})
SETTING = f"{CLIENTS} clients, all in every round; a model of two layers"
"""Where the numbers hold; amounts of some methods depend on the number of clients or on the share of the head."""


def measured_traffic(algorithm: type[Algorithm], variant: str | None = None) -> list[dict[str, Any]]:
    """Traffic of one client on average, with default options.

    Returns
    -------
    list of dict
        ``when`` is ``once`` (what clients send at first contact), ``round 1``, ``from round 2``, ``each round`` or
        ``evaluation``. ``down``, ``up`` and ``peers`` (sent to other clients) are models in units of Sigma, one
        whole model; ``bytes`` are those of summaries, numbers and buffers, by direction and kind.

    Raises
    ------
    Exception
        Whatever the method's code raises.
    """
    method = algorithm() if variant is None else algorithm(variant=variant)  # type: ignore[call-arg]
    settings = Settings(
        rounds=ROUNDS, evaluate_every=ROUNDS, keep_best="last", chunk=CLIENTS, threads=1, executor="stacked",
        training=TrainingSettings(epochs=1, batch_size=4, lr=0.01),
    )  # fmt: skip
    simulation = Simulation(_federation(), method, MODEL, settings)
    sigma = simulation.stack.initial(0).bytes_per_row()[0]
    reports = [simulation.advance() for _ in range(ROUNDS)]
    found: list[dict[str, Any]] = []
    once = [row for report in reports for row in report.ledger if row["phase"] == "describe"]
    if once:
        found.append({"when": "once", **_amounts(once, sigma)})
    rounds = [_amounts([row for row in report.ledger if row["phase"] == "train"], sigma) for report in reports]
    found += ({"when": when, **amounts} for when, amounts in _periods(rounds))
    evaluation = [row for row in reports[-1].ledger if row["phase"] == "evaluate"]
    if evaluation:
        found.append({"when": "evaluation", **_amounts(evaluation, sigma)})
    return found


def _amounts(rows: Sequence[Mapping[str, Any]], sigma: int) -> dict[str, Any]:
    """The rows of a ledger as one client's share."""
    amounts: dict[str, Any] = {"down": 0.0, "up": 0.0, "peers": 0.0, "bytes": {}}
    for row in rows:
        direction = "peers" if row["direction"] == "peer" else row["direction"]
        if row["kind"] == "model":
            amounts[direction] += row["bytes"] / CLIENTS / sigma
        else:
            kind = f"{direction} {row['kind']}"
            amounts["bytes"][kind] = amounts["bytes"].get(kind, 0.0) + row["bytes"] / CLIENTS
    return amounts


def _periods(rounds: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each amount with the rounds in which it holds."""
    begins = [i for i, amounts in enumerate(rounds) if i == 0 or amounts != rounds[i - 1]]
    for begin, end in zip(begins, [*begins[1:], len(rounds)], strict=True):
        last = end == len(rounds)
        if begin == 0 and last:
            yield "each round", rounds[begin]
        elif last:
            yield f"from round {begin + 1}", rounds[begin]
        else:
            yield f"round {begin + 1}" if end == begin + 1 else f"rounds {begin + 1} to {end}", rounds[begin]


def _federation() -> Federation:
    """Eight clients with a few random examples each."""
    draw = torch.Generator().manual_seed(0)

    def split(n: int) -> ClientData:
        inputs = [torch.rand(n, FEATURES, generator=draw) for _ in range(CLIENTS)]
        targets = [torch.arange(n) % CLASSES for _ in range(CLIENTS)]
        return ClientData.from_clients(inputs, targets)

    names = tuple(f"client-{i}" for i in range(CLIENTS))
    return Federation(names, split(8), split(4), split(4), "classification", CLASSES)
