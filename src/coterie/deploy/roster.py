"""Who the sites are: which node speaks for which client, and how many examples each has."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coterie.engines.wire import plain, trouble_of
from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.federation.federation import SPLITS, Split
from coterie.federation.outline import outline
from coterie.federation.preparation import Preparation
from coterie.federation.preparing import size_of
from coterie.federation.schema import Schema
from coterie.runs.atomic import write_json
from coterie.runs.directory import SITES
from coterie.runs.schemas import Schemas

LARGEST_INPUT = 2**28
"""Numbers of one example, of which a site may say any: 1 GiB, of which a model could be made that fits no server."""


class Card(BaseModel):
    """What the server knows of a client's data with one seed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    train: int = Field(ge=1, le=2**40)
    validation: int = Field(ge=0, le=2**40)
    test: int = Field(ge=0, le=2**40)
    shape: list[Annotated[int, Field(ge=1, le=LARGEST_INPUT)]] = Field(max_length=8)
    task: Literal["classification", "regression"]
    classes: int = Field(ge=1, le=2**24)

    @field_validator("shape")
    @classmethod
    def _check_size(cls, shape: list[int]) -> list[int]:
        if math.prod(shape) > LARGEST_INPUT:
            raise ValueError("an input has too many numbers")
        return shape

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


@dataclass(frozen=True)
class Agreed:
    """How the sites' tables become inputs, as they have agreed on with one seed.

    Attributes
    ----------
    schema : Schema
        Of all of them.
    sent : Mapping[str, int]
        Bytes of the sums that sites have sent for it.
    left_out : Mapping[str, str]
        Whose sums are not in it, and why.
    """

    schema: Schema
    sent: Mapping[str, int]
    left_out: Mapping[str, str]


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
    agreed : dict
        By seed, what sites that prepare their tables together have agreed on.
    place : Path, optional
        The run directory, once it holds all this; whoever comes later is entered there at once.
    """

    names: tuple[str, ...]
    seeds: tuple[int, ...]
    bind: bool = True
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    nodes: dict[str, int] = field(default_factory=dict)
    cards: dict[str, dict[int, Card]] = field(default_factory=dict)
    agreed: dict[int, Agreed] = field(default_factory=dict)
    place: Path | None = None

    def meet(self, node: int, tree: Mapping[str, Any]) -> str:
        """Take in what a node says of itself; the name of its client.

        Raises
        ------
        CoterieError
            It is no client of this federation, another node is, its data do not fit, it cannot take part, or the run
            directory cannot be written.
        """
        name = tree.get("client")
        if name not in self.names:
            raise CoterieError(f"a node says that it is {plain(name, 60)!r}, which is no site of this federation")
        if (trouble := trouble_of(tree)) is not None:
            raise CoterieError(f"{name} cannot take part: {trouble[1]}")
        if tree.get("coterie") != (ours := version("coterie")):
            theirs = plain(tree.get("coterie", "another version"), 40)
            raise CoterieError(f"{name} has Coterie {theirs}, the server {ours}: install the same at both")
        if self.bind and self.nodes.get(name, node) != node:
            raise CoterieError(
                f"another node than before, {node}, says that it is {name}: two sites have the same name, or its key "
                f"was changed; in the latter case remove its line from {SITES} in the run directory; nodes.txt of the "
                "server has the names of nodes"
            )
        try:
            cards = {int(seed): Card.model_validate(card) for seed, card in tree["cards"].items()}
        except (LookupError, TypeError, ValueError, AttributeError, ValidationError) as error:
            raise CoterieError(f"{name} does not say what its data are like") from error
        if missing := [seed for seed in self.seeds if seed not in cards]:
            raise CoterieError(f"{name} does not say what its data are like with seed {missing[0]}")
        if (known := self.cards.get(name)) is not None and known != cards:
            raise CoterieError(f"the data of {name} have changed since the run began: start a new run")
        for seed, (other, its) in product(self.seeds, self.cards.items()):
            if seed in its and its[seed].kind != cards[seed].kind:
                (shape, task, classes), (others, their, kinds) = cards[seed].kind, its[seed].kind
                raise CoterieError(
                    f"the data of {name} ({task}, {classes} classes, inputs of shape {tuple(shape)}) are not like "
                    f"those of {other} ({their}, {kinds} classes, {tuple(others)}): coterie deploy check tells there"
                )
        news = known is None or self.nodes.get(name) != node
        self.nodes[name], self.cards[name] = node, cards
        if news and self.place is not None:
            self.save(self.place)
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
        source: dict[str, Any] = {"source": "sites", "seed": seed}
        agreed = self.agreed.get(seed)
        if agreed is None:
            return outline(self.names, n, feature_shape=shape, task=known.task, classes=classes, source=source)
        schema = agreed.schema
        source["schema"] = schema.as_dict()
        whole = outline(
            self.names, n, feature_shape=schema.input_shape, task=schema.task, classes=schema.classes, source=source
        )
        return replace(whole, preparation=self._preparation(agreed, size_of(source["schema"])))

    def _preparation(self, agreed: Agreed, size: int) -> Preparation:
        """What sites have sent; the schema goes to all that have ever been there."""
        up = [agreed.sent.get(name, 0) for name in self.names]
        down = [size if name in self.cards else 0 for name in self.names]
        return Preparation(np.array(up, dtype=np.int64), np.array(down, dtype=np.int64))

    def save(self, directory: Path) -> None:
        """Write it into a run directory, now and whenever somebody else has come."""
        self.place = directory
        cards = {
            name: {str(seed): card.model_dump() for seed, card in cards.items()} for name, cards in self.cards.items()
        }
        content: dict[str, Any] = {"run": self.run, "nodes": self.nodes, "cards": cards}
        if self.agreed:
            content["prepared"] = {
                str(seed): {"sent": dict(agreed.sent), "left_out": dict(agreed.left_out)}
                for seed, agreed in self.agreed.items()
            }
        write_json(directory / SITES, content)

    def load(self, directory: Path) -> None:
        """Take up that of a run directory; ``CoterieError`` where it is damaged."""
        path = directory / SITES
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            self.run, self.nodes = str(content["run"]), {name: int(node) for name, node in content["nodes"].items()}
            self.cards = {
                name: {int(seed): Card.model_validate(card) for seed, card in cards.items()}
                for name, cards in content["cards"].items()
            }
            self.agreed = {
                int(seed): Agreed(schema, {name: int(size) for name, size in told["sent"].items()}, told["left_out"])
                for seed, told in content.get("prepared", {}).items()
                if (schema := Schemas.read(directory, int(seed)).shared) is not None
            }
            self.place = directory
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ValidationError) as error:
            raise CoterieError(
                f"{path} is missing or damaged: this run cannot be continued; start a new one"
            ) from error
