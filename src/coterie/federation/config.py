"""The section ``federation:`` of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    create_model,
    field_validator,
    model_validator,
)

from coterie.errors import CoterieError
from coterie.federation.datasets import SOURCES, Options, find_source
from coterie.federation.datasets.memory import IN_MEMORY
from coterie.federation.datasets.sites import AT_SITES
from coterie.federation.folds import Fold
from coterie.federation.partition import RULES, Amount, Rule, Sizes
from coterie.federation.sides import Official

if TYPE_CHECKING:
    PartitionConfig = Rule
else:
    # A union of whatever rules are registered, told apart by their key ``rule``
    PartitionConfig = Annotated[reduce(or_, (RULES[name] for name in sorted(RULES))), Field(discriminator="rule")]


Statistic = float | list[float]

UNDIVIDED = {
    AT_SITES: "for each site's own site.yaml says how its data are divided",
    IN_MEMORY: "for the federation was divided before it was given",
}
"""Sources that no rule divides, and why."""


class FederationConfig(BaseModel):
    """Which data, and how they are divided among the clients.

    Sizes left out are filled in from the rule: 128 / 64 / ``rest`` for rotation, ``rest`` / 0.2 / 0.2 for
    the others. A source may have options of its own, which stand beside these keys: validation then gives an instance
    of a subclass, see `section_for`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    source: str = Field(description="name of the data source, see `coterie datasets`")
    partition: PartitionConfig = Field(description="how the examples are divided among the clients")
    train: int | float | Literal["rest"] | None = Field(
        None,
        description="training examples of a client: number (a limit unless the rule is rotation), fraction, or rest",
    )
    validation: int | float | None = Field(None, description="validation examples of a client: number or fraction")
    test: int | float | Literal["rest", "official"] | None = Field(
        None, description="test examples of a client: number, fraction, rest (rotation only) or official"
    )
    normalise: Literal["none", "standard"] | Annotated[tuple[Statistic, Statistic], Strict(False)] = Field(  # a list
        "none",
        description="inputs less a mean, divided by a standard deviation: none, standard (what papers use for the "
        "source) or [mean, std], each a number or one a channel",
    )
    resize: int | None = Field(None, ge=1, le=1024, description="side of the pictures in pixels, if they are to change")
    seed: int | None = Field(None, ge=0, description="seed of the division; left out: the seed of the run")
    fold: Fold | None = Field(
        None,
        description="cross-fitting: {index: 0, of: 5} divides what is not for testing in 5 parts, of which the first "
        "validates and the others train",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_source(cls, data: Any, handler: ModelWrapValidatorHandler[FederationConfig]) -> FederationConfig:
        if cls is not FederationConfig or not isinstance(data, Mapping):
            return handler(data)
        if data.get("source") not in list(SOURCES):  # that is the mistake, not the options of the source that was meant
            return handler({key: value for key, value in data.items() if key not in _options_of_all()})
        if data.get("source") in UNDIVIDED:
            data = {"partition": {"rule": "natural"}, **data}
        section = section_for(data)
        if issubclass(section, Options) and section.own:
            data = _by_clients(data)
        return handler(data) if section is cls else section.model_validate(data)

    @field_validator("source")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            find_source(name)
        except CoterieError as error:
            raise ValueError(str(error)) from error
        return name

    @field_validator("train", "validation", "test")
    @classmethod
    def _sensible(cls, value: Amount | None) -> Amount | None:
        if isinstance(value, float) and not 0 <= value < 1:
            raise ValueError(f"a fraction lies between 0 and 1; {value} does not (a number of examples is an integer)")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"a number of examples is not negative, but {value} is")
        return value

    @field_validator("normalise")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if not all(np.isfinite(part).all() for part in value):
            raise ValueError("mean and standard deviation must be finite numbers")
        if not np.all(np.asarray(value[1]) > 0):
            raise ValueError(f"the standard deviation, the second of the two, must be above 0, not {value[1]}")
        return value

    @model_validator(mode="after")
    def _fill_in(self) -> FederationConfig:
        if self.source in UNDIVIDED:
            return self._undivided()
        sizes = self.sizes_in_force
        for key in ("train", "validation", "test"):
            if key != "test" or self.test is not None or not self._may_be_split:
                object.__setattr__(self, key, getattr(sizes, key))
        return self

    @property
    def _may_be_split(self) -> bool:
        """Whether the source may have a split of its own, client by client, which only its files tell."""
        return isinstance(self, Options) and self.own and self.partition.rule == "natural"

    def sizes_for(self, sides: Official | None) -> Sizes:
        """Numbers and fractions of examples; left out, ``test`` is official where the source has such a split."""
        sizes = self.sizes_in_force
        official = self.test is None and sides is not None
        return replace(sizes, test="official") if official else sizes

    def _undivided(self) -> FederationConfig:
        """The section of data that are divided already, or are at sites, which divide them as their own files say."""
        usual = {"partition": RULES["natural"].model_validate({"rule": "natural"}), "normalise": "none"}
        free = {"source", "seed", "fold"}
        if idle := [key for key in KEYS if key not in free and getattr(self, key) != usual.get(key)]:
            reason = UNDIVIDED[self.source]
            raise ValueError(f"{idle[0]} means nothing where source is {self.source}, {reason}: remove it")
        return self

    def __reduce__(self) -> tuple[Callable[..., FederationConfig], tuple[str, dict[str, Any]]]:
        # the subclass of a source with options is made, not imported
        return _restored, (find_source(self.source).module, self.model_dump())

    @property
    def sizes_in_force(self) -> Sizes:
        """Numbers and fractions of examples, the rule's defaults included."""
        given = {key: getattr(self, key) for key in ("train", "validation", "test")}
        if self.test == "official" and self._may_be_split:
            return replace(self.partition.resolve({**given, "test": None}), test="official")
        return self.partition.resolve(given)

    @property
    def options(self) -> Options | None:
        """The options of the source; None where it has none."""
        model = find_source(self.source).options
        return None if model is None else model(**{key: getattr(self, key) for key in model.model_fields})


def _by_clients(data: Mapping[str, Any]) -> dict[str, Any]:
    """The section of data that come with their clients: each is one, and none is left out for being small."""
    partition = data.get("partition", {"rule": "natural"})
    if isinstance(partition, Mapping) and partition.get("rule") == "natural":
        partition = {"min_examples": 1, **partition}
    return {**data, "partition": partition}


def section_for(data: Any) -> type[FederationConfig]:
    """The class that a section is validated as: with the options of its source, where that has some.

    Args:
        data: the section as it was read, be it right or wrong.
    """
    name = data.get("source") if isinstance(data, Mapping) else None
    source = SOURCES.get(name) if isinstance(name, str) else None
    return FederationConfig if source is None or source.options is None else _with_options(source.options)


@cache
def _with_options(options: type[Options]) -> type[FederationConfig]:
    """The section's class for such options: the keys of every section, then these."""
    if clash := [key for key in options.model_fields if hasattr(FederationConfig, key) or key in KEYS]:
        raise TypeError(f"{options.__name__}: the option {clash[0]} has the name of a key of every source")
    bases: Any = (options, FederationConfig)  # keys of the last come first
    name = f"{options.__name__}Federation"
    return cast(type[FederationConfig], create_model(name, __base__=bases, __doc__=FederationConfig.__doc__))


def _options_of_all() -> set[str]:
    """The names of the options of all sources."""
    return {key for source in SOURCES.values() if source.options is not None for key in source.options.model_fields}


def _restored(module: str, section: dict[str, Any]) -> FederationConfig:
    """The section in another process, where the source may have to be registered first."""
    import_module(module)
    return FederationConfig.model_validate(section)


KEYS = tuple(FederationConfig.model_fields)
