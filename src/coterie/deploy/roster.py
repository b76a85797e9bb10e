"""Who the sites are: which node speaks for which client, and how many examples each has."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.federation.federation import SPLITS, Split
from coterie.federation.outline import outline
from coterie.runs.atomic import write_json

FILE = "sites.json"
"""In the run directory."""


class Card(BaseModel):
    """What the server knows of a client's data with one seed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    train: int = Field(ge=1, le=2**40)
    validation: int = Field(ge=0, le=2**40)
    test: int = Field(ge=0, le=2**40)
    shape: list[int] = Field(max_length=8)
    task: Literal["classification", "regression"]
    classes: int = Field(ge=1, le=2**24)

    @classmethod
    def of(cls, federation: Federation) -> Card:
        """The card of the one client of a site's federation."""
        n = {split: int(federation.split(split).n[0]) for split in SPLITS}
        shape, task, classes = list(federation.feature_shape), federation.task, federation.classes
        return cls(**n, shape=shape, task=task, classes=classes)

    @property
    def kind(self) -> tuple[list[int], str, int]:
        """What the data of all clients have in common."""
        return self.shape, self.task, self.classes


@dataclass
class Roster:
    """The clients of a federation of real sites.

    Attributes
    ----------
    names : tuple of str
        All of them.
    seeds : tuple of int
        Of the experiment: the division of a client's data may depend on them.
    bind : bool
        Whether a client stays with the node that spoke for it first, which Flower tells by its key.
    run : str
        A random name, under which the sites keep what belongs to this run.
    nodes, cards : dict
        By client: its node; by client and seed: what is known of its data.
    """

    names: tuple[str, ...]
    seeds: tuple[int, ...]
    bind: bool = True
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    nodes: dict[str, int] = field(default_factory=dict)
    cards: dict[str, dict[int, Card]] = field(default_factory=dict)

    def meet(self, node: int, tree: Mapping[str, Any]) -> str:
        """Take in what a node says of itself; the name of its client.

        Raises
        ------
        CoterieError
            It is no client of this federation, another node is, its data do not fit, or it cannot take part.
        """
        name = tree.get("client")
        if name not in self.names:
            raise CoterieError(f"a node says that it is {str(name)[:60]!r}, which is no site of this federation")
        if tree.get("trouble"):
            raise CoterieError(f"{name} cannot take part: {' '.join(str(tree['trouble'][-1])[:300].split())}")
        if self.bind and self.nodes.get(name, node) != node:
            raise CoterieError(
                f"another node than before says that it is {name}: two sites have the same name, or its key was "
                f"changed; in the latter case remove its line from {FILE} in the run directory"
            )
        try:
            cards = {int(seed): Card.model_validate(card) for seed, card in tree["cards"].items()}
        except (LookupError, TypeError, ValueError, AttributeError, ValidationError) as error:
            raise CoterieError(
                f"{name} does not say what its data are like: is its Coterie another version?"
            ) from error
        if missing := [seed for seed in self.seeds if seed not in cards]:
            raise CoterieError(f"{name} does not say what its data are like with seed {missing[0]}")
        if (known := self.cards.get(name)) is not None and known != cards:
            raise CoterieError(f"the data of {name} have changed since the run began: start a new run")
        for other, its in self.cards.items():
            if its[self.seeds[0]].kind != cards[self.seeds[0]].kind:
                (shape, task, classes), (others, their, kinds) = cards[self.seeds[0]].kind, its[self.seeds[0]].kind
                raise CoterieError(
                    f"the data of {name} ({task}, {classes} classes, inputs of shape {tuple(shape)}) are not like "
                    f"those of {other} ({their}, {kinds} classes, {tuple(others)}): coterie deploy check tells there"
                )
        self.nodes[name], self.cards[name] = node, cards
        return str(name)

    @property
    def missing(self) -> list[str]:
        """The clients that have never been there."""
        return [name for name in self.names if name not in self.cards]

    def federation(self, seed: int) -> Federation:
        """Who takes part and how many examples each has, 0 for those that have never been there."""
        cards = [self.cards[name][seed] if name in self.cards else None for name in self.names]
        shape, _, classes = (known := next(card for card in cards if card is not None)).kind
        n: dict[Split, list[int]] = {
            split: [0 if card is None else getattr(card, split) for card in cards] for split in SPLITS
        }
        source = {"source": "sites", "seed": seed}
        return outline(self.names, n, feature_shape=shape, task=known.task, classes=classes, source=source)

    def save(self, directory: Path) -> None:
        """Write it into a run directory."""
        cards = {
            name: {str(seed): card.model_dump() for seed, card in cards.items()} for name, cards in self.cards.items()
        }
        write_json(directory / FILE, {"run": self.run, "nodes": self.nodes, "cards": cards})

    def load(self, directory: Path) -> None:
        """Take up that of a run directory; ``CoterieError`` where it is damaged."""
        path = directory / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            self.run, self.nodes = str(content["run"]), {name: int(node) for name, node in content["nodes"].items()}
            self.cards = {
                name: {int(seed): Card.model_validate(card) for seed, card in cards.items()}
                for name, cards in content["cards"].items()
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ValidationError) as error:
            raise CoterieError(
                f"{path} is missing or damaged: this run cannot be continued; start a new one"
            ) from error
