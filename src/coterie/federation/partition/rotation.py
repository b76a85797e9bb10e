"""FEDORA's rotated sets (Wu et al., KDD 2023, appendix B)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor

from coterie.errors import CoterieError
from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.rule import Division, Rule, Sizes, register_rule
from coterie.federation.rotate import Interpolation, rotate

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


@register_rule
class Rotation(Rule):
    """Every client sees the same kind of images, turned by its own angle (FEDORA)

    Client ``i`` has its images rotated by ``360 i / K`` degrees, by ``i`` times ``degrees``, or by
    ``angles[i]``. Training and validation images are drawn without replacement from one permutation of the
    official training set; the official test set is split evenly, the remainder left unused. A source without
    an official test set is one pool for all three.

    ``big_client`` makes one client (a number from 0, or ``middle`` for K // 2) rich: the others keep their
    sizes and it gets two thirds of all remaining images for training and one third for validation.
    """

    default_sizes: ClassVar[Sizes] = Sizes(train=128, validation=64, test="rest")

    rule: Literal["rotation"] = "rotation"
    clients: int = Field(ge=1, description="number of clients K")
    degrees: float | None = Field(None, allow_inf_nan=False, description="angle between neighbouring clients")
    angles: list[Annotated[float, Field(allow_inf_nan=False)]] | None = Field(None, description="one angle a client")
    train_sizes: list[Positive] | None = Field(None, description="training images, one number a client")
    validation_sizes: list[Count] | None = Field(None, description="validation images, one number a client")
    big_client: Count | Literal["middle"] | None = Field(None, description="the client that gets all remaining images")
    interpolation: Interpolation = Field("nearest", description="how a turned image is sampled")

    @model_validator(mode="before")
    @classmethod
    def _count_angles(cls, data: Any) -> Any:
        """A list of angles says by itself how many clients there are."""
        if isinstance(data, dict) and "clients" not in data and isinstance(data.get("angles"), list):
            return {**data, "clients": len(data["angles"])}
        return data

    @model_validator(mode="after")
    def _agree(self) -> Rotation:
        if self.degrees is not None and self.angles is not None:
            raise ValueError("give either degrees or angles, not both")
        for key in ("angles", "train_sizes", "validation_sizes"):
            values = getattr(self, key)
            if values is not None and len(values) != self.clients:
                raise ValueError(f"{key} has {len(values)} values for {self.clients} clients; give one a client")
        if self.big_client is not None and (self.train_sizes or self.validation_sizes):
            raise ValueError("big_client sets the sizes by itself; leave out train_sizes and validation_sizes")
        if isinstance(self.big_client, int) and self.big_client >= self.clients:
            raise ValueError(f"big_client is {self.big_client} but the clients are 0 .. {self.clients - 1}")
        return self

    def resolve(self, given: Mapping[str, Any]) -> Sizes:
        """Sizes in force; here they are numbers of images, and ``test`` may be ``rest``."""
        if self.train_sizes is not None and given["train"] is not None:
            raise ValueError("give either train or partition.train_sizes, not both")
        if self.validation_sizes is not None and given["validation"] is not None:
            raise ValueError("give either validation or partition.validation_sizes, not both")
        sizes = super().resolve(given)
        if self.train_sizes is not None:
            sizes = replace(sizes, train=None)
        if self.validation_sizes is not None:
            sizes = replace(sizes, validation=None)
        for key in ("train", "validation", "test"):
            value = getattr(sizes, key)
            if value is not None and not isinstance(value, int) and not (key == "test" and value == "rest"):
                allowed = "a number of images" + (" or 'rest'" if key == "test" else "")
                raise ValueError(f"{key} must be {allowed} under the rule rotation, not {value!r}")
        if sizes.train == 0 or sizes.test == 0:
            raise ValueError("train and test must be at least 1")
        return sizes

    @property
    def client_angles(self) -> list[float]:
        """Degrees by which each client's images are turned counter-clockwise."""
        if self.angles is not None:
            return self.angles
        if self.degrees is not None:
            return [i * self.degrees for i in range(self.clients)]
        # i * 360 / K rather than i * (360 / K): quarter turns come out exact
        return [i * 360 / self.clients for i in range(self.clients)]

    def divide(self, examples: Examples, sizes: Sizes, generator: np.random.Generator) -> Division:
        """Draw the images; see the class."""
        if examples.inputs.dim() < 4:
            raise CoterieError(
                f"The rule rotation needs images (channels, height, width), but {examples.name!r} has "
                f"inputs of shape {tuple(examples.inputs.shape[1:])}: choose another rule."
            )
        one_pool = examples.boundary is None
        pool = generator.permutation(examples.train_rows)
        train, validation, test = self._counts(sizes, len(pool), one_pool, examples.name)
        test_pool = pool[sum(train) + sum(validation) :] if one_pool else generator.permutation(examples.test_rows)
        if sizes.test == "rest":
            test = [len(test_pool) // self.clients] * self.clients
        if sum(test) > len(test_pool) or min(test) == 0:
            each = "at least 1" if sizes.test == "rest" else f"{max(test)}"
            raise CoterieError(
                f"The rule rotation wants {each} test images for each of {self.clients} clients, but "
                f"{examples.name!r} has {len(test_pool):,} left for testing: ask for fewer clients or "
                "images."
            )
        angles = self.client_angles

        def turn(images: Tensor, client: int) -> Tensor:
            return rotate(images, angles[client], self.interpolation)

        return Division(
            train=_slices(pool, train),
            validation=_slices(pool[sum(train) :], validation),
            test=_slices(test_pool, test),
            transform=turn,
            columns={"angle": angles},
        )

    def _counts(self, sizes: Sizes, pool: int, one_pool: bool, name: str) -> tuple[list[int], list[int], list[int]]:
        """Numbers of training, validation and (where they are fixed) test images of each client."""
        k = self.clients
        train = list(self.train_sizes or [_number(sizes.train)] * k)
        validation = list(self.validation_sizes or [_number(sizes.validation)] * k)
        test = [0 if sizes.test == "rest" else _number(sizes.test)] * k
        reserved = sum(test) if one_pool else 0
        if self.big_client is not None:
            if one_pool and sizes.test == "rest":
                raise CoterieError(
                    f"big_client takes every image that is left, and {name!r} has no official test set: "
                    "give test as a number of images per client."
                )
            big = k // 2 if self.big_client == "middle" else self.big_client
            rest = pool - reserved - (sum(train) - train[big]) - (sum(validation) - validation[big])
            train[big] = 2 * rest // 3 if validation[big] else rest
            validation[big] = rest - train[big]
            if train[big] < 1:
                raise CoterieError(
                    f"Nothing is left for big_client: the other {k - 1} clients already want "
                    f"{pool - rest:,} of the {pool:,} images of {name!r}. Ask for fewer clients or images."
                )
        wanted = sum(train) + sum(validation) + reserved
        if wanted > pool:
            raise CoterieError(
                f"The rule rotation wants {wanted:,} images for {k} clients (training {sum(train):,}, "
                f"validation {sum(validation):,}{f', test {reserved:,}' if reserved else ''}), but {name!r} "
                f"has only {pool:,}: ask for fewer clients or images."
            )
        return train, validation, test


def _number(amount: object) -> int:
    """A size that ``resolve`` has already found to be a number."""
    if not isinstance(amount, int):
        raise TypeError(f"{amount!r} is not a number of images")
    return amount


def _slices(rows: Rows, counts: Sequence[int]) -> list[Rows]:
    """Consecutive slices of these lengths."""
    return np.split(rows[: sum(counts)], np.cumsum(counts)[:-1])
