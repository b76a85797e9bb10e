"""What a user says of the columns of a table: the options of every source that reads tables."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from coterie.federation.datasets.registry import Options
from coterie.federation.federation import Task
from coterie.federation.preparing import Missing
from coterie.federation.schema import Names, Schema

SPLIT_BY = ("group", "time")
"""Keys of the columns by which rows are split."""


class TableOptions(Options):
    """What a table's columns are; the same for one file and for one file a client."""

    own = True

    target: str | list[str] = Field(description="column to predict; several are a regression of several numbers")
    features: list[str] | None = Field(None, description="columns to predict it from; left out, all others")
    categorical: list[str] | dict[str, Names] = Field(
        [], description="columns of categories, even where they look like numbers; maybe each with its values"
    )
    ignore: list[str] = Field([], description="columns that are no features")
    task: Task | None = Field(None, description="left out, texts and at most 20 whole numbers are classes")
    labels: Names | None = Field(None, description="the classes in order; left out, those that occur")
    classes: int | None = Field(None, ge=2, description="number of classes, where these are 0, 1, ...")
    missing: Missing = Field("error", description="missing features: refuse them, mark them, or take the mean")
    preprocessing: Literal["federated", "client", "none"] = Field(
        "federated",
        description="whose training rows numbers are standardised by: all clients', each one's own, or none",
    )
    standardise_targets: bool | Literal["auto"] = Field(
        "auto",
        description="whether a regression learns targets less their mean, by their deviation, both of all training "
        "rows; auto: unless preprocessing is none",
    )
    weights: str | None = Field(None, description="column that says how much each row counts; left out, all alike")
    split: str | None = Field(None, description="column with train, validation and test, the official split")
    group: str | None = Field(None, description="column whose equal values, such as a patient, stay in one split")
    time: str | None = Field(None, description="column of time: earliest rows train, the latest test")

    @model_validator(mode="after")
    def _agree(self) -> TableOptions:
        given = [key for key in SPLIT_BY if getattr(self, key) is not None]
        if self.split is not None and given:
            raise ValueError(f"split says where every row belongs, so {given[0]} has no effect: keep one of them")
        named = {f"labels of {self.target}": self.labels or []}
        named |= self.categorical if isinstance(self.categorical, dict) else {}
        if twice := [name for name, values in named.items() if len(set(values)) < len(values)]:
            raise ValueError(f"a value of {twice[0]} is listed twice: list each once")
        if self.labels is not None and self.classes not in (None, len(self.labels)):
            raise ValueError(f"classes is {self.classes}, but labels lists {len(self.labels)}: leave out classes")
        if isinstance(self.target, list) and (not self.target or self.task == "classification"):
            raise ValueError("a list of targets is a regression of at least one column")
        if self.preprocessing == "none" and self.missing == "mean":
            raise ValueError("missing: mean needs a mean, which preprocessing: none does not compute: say mark")
        if self.standardise_targets is True and self.preprocessing == "none":
            raise ValueError(
                "standardise_targets needs sums of the targets, which preprocessing: none does not compute: leave out "
                "standardise_targets"
            )
        if self.standardise_targets is True and self.task == "classification":
            raise ValueError("standardise_targets is for a regression, and the task is classification: leave it out")
        natural = getattr(getattr(self, "partition", None), "rule", "natural") == "natural"
        if self.split is not None and natural and getattr(self, "test", None) not in (None, "official"):
            raise ValueError("split says which rows are for testing: leave out test")
        return self

    def following(self, schema: Schema, preprocessing: Literal["federated", "client"]) -> Self:
        """The same for a table whose columns become inputs as those of another one did."""
        features = schema.features or []
        gaps = "mark" if any(feature.missing for feature in features) else "mean"
        return self.model_copy(
            update={
                "features": [feature.name for feature in features],
                "categorical": {feature.name: feature.values for feature in features if feature.kind == "category"},
                "task": schema.task,
                "labels": schema.labels,
                "classes": None,
                "missing": gaps if any(feature.missing or feature.impute for feature in features) else "error",
                "preprocessing": preprocessing,
            }
        )

    @property
    def scaled(self) -> bool:
        """Whether the targets of a regression are standardised."""
        if self.standardise_targets == "auto":
            return self.preprocessing != "none"
        return self.standardise_targets

    @property
    def targets(self) -> list[str]:
        """The target columns."""
        return [self.target] if isinstance(self.target, str) else self.target
