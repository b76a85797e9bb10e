"""What the data of every client must be like: the task, the classes, and the columns or the shape of an input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from coterie.federation.data import Normal
from coterie.federation.federation import Federation, Task

WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*([eE][+-]?[0-9]+)?)?")
"""A number as programs write it: without leading zeros, and with a point before an exponent."""


def plain(value: Any) -> str:
    """A category or a label as text: ``3``, ``3.0`` and ``"3"`` are the same, so are ``True`` and ``"true"``.

    Codes stay what they are: ``03``, ``1_0`` and ``1E2`` are no other way to write 3, 10 and 100.
    """
    text = str(value).strip()
    if text in ("True", "False"):
        return text.lower()
    if WHOLE.fullmatch(text) is None:
        return text
    number = float(text)
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e15 else text


def _plain_list(value: Any) -> Any:
    """Names may be written as numbers; whether ``false`` was ``no`` in the file, nobody can tell."""
    listed = isinstance(value, list | tuple)
    if listed and any(isinstance(item, bool) for item in value):
        raise ValueError('put yes, no, true and false into quotes, as in ["no", "yes"]: YAML takes them for no texts')
    return [plain(item) if isinstance(item, str | int | float) else item for item in value] if listed else value


Names = Annotated[list[str], BeforeValidator(_plain_list)]


class Feature(BaseModel):
    """One column of a table and how it becomes inputs: a number one, a category one for each of its values."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    name: str = Field(min_length=1, description="name of the column")
    kind: Literal["number", "category"] = "number"
    values: Names = Field([], description="of a category: the values it may have, each of which becomes an input")
    mean: float = Field(0.0, description="of a number x, the input is (x - mean) / std")
    std: float = Field(1.0, gt=0)
    missing: bool = Field(False, description="values may be missing: 0, and a further input that is 1 there")
    impute: bool = Field(False, description="values may be missing: 0, which is the mean, without a further input")

    @model_validator(mode="after")
    def _of_its_kind(self) -> Feature:
        if self.kind == "category" and not self.values:
            raise ValueError(f"the category {self.name} needs values, the list of what it may be")
        if self.kind == "number" and self.values:
            raise ValueError(f"{self.name} has values, which a category has: give kind: category")
        if len(set(self.values)) != len(self.values):
            raise ValueError(f"a value of {self.name} is listed twice")
        return self

    @property
    def width(self) -> int:
        """Number of inputs it becomes, without the one that says where it is missing."""
        return len(self.values) if self.kind == "category" else 1


class Schema(BaseModel):
    """What the data of every client must be like.

    Inputs of a table are those of its ``features`` in this order, then one for each that may be missing. Other inputs
    are arrays of ``shape``; ``mean`` and ``std``, each a number a channel, are what they are normalised with.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    task: Task = "classification"
    classes: int = Field(ge=1, description="number of classes; of targets, where the task is regression")
    labels: Names | None = Field(None, description="names of the classes in order; without them labels are 0, 1, ...")
    target: str | list[str] | None = Field(
        None, description="column of a table that holds the target; of a regression, maybe several"
    )
    features: list[Feature] | None = Field(None, description="columns of a table, in order")
    shape: list[int] | None = Field(None, description="shape of one input; of a table, it follows from the features")
    mean: list[float] | None = None
    std: list[Annotated[float, Field(gt=0)]] | None = None
    target_mean: list[float] | None = Field(
        None, description="of a regression, models learn (target - mean) / std; one number a target"
    )
    target_std: list[Annotated[float, Field(gt=0)]] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Schema:
        if self.labels is not None and self.task == "regression":
            raise ValueError("labels belong to a classification, and the task is regression")
        if self.labels is not None and (len(self.labels) != self.classes or len(set(self.labels)) != self.classes):
            raise ValueError(f"there are {self.classes} classes: list so many different labels")
        if isinstance(self.target, list) and (self.task == "classification" or len(self.target) != self.classes):
            raise ValueError("several targets belong to a regression, whose classes are how many there are")
        if self.features is None and self.shape is None:
            raise ValueError("give features, the columns of a table, or shape, that of one input")
        if self.features is not None:
            names = [feature.name for feature in self.features]
            if not names or len(set(names)) != len(names) or set(self.targets) & set(names):
                raise ValueError("list each feature once, at least one, and the target not among them")
            if self.shape is not None and list(self.shape) != [self.inputs]:
                raise ValueError(f"shape is {self.shape}, but the features become {self.inputs} inputs: leave it out")
        if (self.mean is None) != (self.std is None):
            raise ValueError("give both mean and std, or neither")
        scaling = [values for values in (self.target_mean, self.target_std) if values is not None]
        if len(scaling) == 1:
            raise ValueError("give both target_mean and target_std, or neither")
        if scaling and (self.task != "regression" or any(len(values) != self.classes for values in scaling)):
            raise ValueError("target_mean and target_std belong to a regression, one number a target")
        return self

    @property
    def target_normal(self) -> Normal | None:
        """How targets are standardised; None where they are used as they are."""
        if self.target_mean is None or self.target_std is None:
            return None
        return Normal(*(torch.tensor(values, dtype=torch.float64) for values in (self.target_mean, self.target_std)))

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns that hold the target; none where it is not known."""
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else tuple(self.target)

    @property
    def inputs(self) -> int:
        """Number of inputs that the features become."""
        features = self.features or []
        return sum(feature.width for feature in features) + sum(feature.missing for feature in features)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.inputs,) if self.features is not None else tuple(self.shape or ())

    @property
    def label_names(self) -> Sequence[str]:
        """Names of the classes, ``0``, ``1``, ... where they have no others; empty for a regression."""
        if self.task == "regression":
            return ()
        return self.labels if self.labels is not None else tuple(map(str, range(self.classes)))

    @classmethod
    def of(cls, federation: Federation) -> Schema:
        """What is known from a federation: of a table its columns, else task, classes, shape and normalisation.

        Where each client standardises by itself, the columns are as they stand: the clients share no statistics.
        """
        if "schema" in federation.source:
            return cls.model_validate(federation.source["schema"])
        if each := federation.source.get("schemas"):
            return cls.model_validate(next(iter(each.values()))).plain()
        normal, scaling = federation.train.normal, federation.train.target_normal
        return cls(
            task=federation.task,
            classes=federation.classes,
            labels=federation.source.get("class_names"),
            shape=list(federation.feature_shape),
            mean=None if normal is None else normal.mean.flatten().tolist(),
            std=None if normal is None else normal.std.flatten().tolist(),
            target_mean=None if scaling is None else scaling.mean.flatten().tolist(),
            target_std=None if scaling is None else scaling.std.flatten().tolist(),
        )

    @property
    def computed(self) -> bool:
        """Whether it holds means and standard deviations of somebody's data."""
        numbers = any((feature.mean, feature.std) != (0.0, 1.0) for feature in self.features or [])
        return numbers or self.target_mean is not None

    def plain(self) -> Schema:
        """The same columns with numbers as they stand."""
        features = [feature.model_copy(update={"mean": 0.0, "std": 1.0}) for feature in self.features or []]
        return self.model_copy(update={"features": features})

    def as_dict(self) -> dict[str, Any]:
        """Plain data, defaults left out."""
        return {"task": self.task, **self.model_dump(exclude_defaults=True)}
