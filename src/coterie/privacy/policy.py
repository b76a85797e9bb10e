"""What a site lets others do with its data: the section ``policy:`` of its file, which only the site can change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from torch import Tensor

from coterie.contract import Algorithm, algorithm_class, available_algorithms
from coterie.contract.payload import Value, weigh
from coterie.errors import CoterieError

BUILT_IN = "built-in"
ANY = "any"
MEGABYTE = 1e6


class Refused(CoterieError):
    """The site's policy does not allow it; the message names the key and holds nothing of the site's data."""


def _listed(value: Any) -> Any:
    """``fedora`` is short for ``[fedora]``."""
    return [value] if isinstance(value, str) else value


def _known(names: list[str]) -> list[str]:
    """A misspelt method is a mistake now, not when it is asked for; a class elsewhere is not imported to find out."""
    for name in names:
        if _is_name(name):
            try:
                algorithm_class(name)
            except CoterieError as error:
                raise ValueError(str(error)) from error
    return names


def _is_name(text: str) -> bool:
    """Whether it is the name of a method, not ``built-in`` and not ``module:Class``."""
    return text != BUILT_IN and ":" not in text


Names = Annotated[list[str], BeforeValidator(_listed)]


class Policy(BaseModel):
    """What may leave a site. Every check raises `Refused`.

    Attributes
    ----------
    algorithms : list of str
        Methods that the site takes part in: ``built-in`` for all that come with Coterie, names, or ``module:Class``.
    models : list of str
        Models that it trains: likewise, or ``module:factory``.
    payloads : list of str
        What may leave, by the names under which client methods return it, or ``any``.
    summaries : bool
        Whether tensors that are no models may leave: subspaces, histograms, weights of other clients.
    numbers : bool
        Whether single numbers may leave, such as a loss or a number of steps. The number of examples always does.
    evaluation : bool
        Whether the loss and accuracy of the site's model may leave; by default only where there is no ``noise``.
    preprocessing : bool
        Whether sums over the columns of a table, and the values of its categories, may leave before the first round;
        by default only where ``summaries`` may, ``payloads`` lists nothing and there is no ``noise``.
    smallest_group : int
        Training rows that must have a category, or numbers in a column, before the one or the sum of the other leaves.
    largest_megabytes : float
        The largest answer, in 10^6 bytes.
    smallest_examples : int
        Training examples below which the site takes no part.
    clip : float, optional
        L2 norm to which an answer's change is cut, all its tensors together.
    noise : float, optional
        Noise multiplier sigma: each number is sent with Gaussian noise of standard deviation ``noise * clip``.
    delta : float
        The delta at which epsilon is stated.
    epsilon : float, optional
        The budget: the site refuses an answer after which more would be spent.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    algorithms: Annotated[Names, Field(min_length=1), AfterValidator(_known)] = [BUILT_IN]
    models: Annotated[Names, Field(min_length=1)] = [BUILT_IN]
    payloads: Names = [ANY]
    summaries: bool = True
    numbers: bool = True
    evaluation: bool | None = None
    preprocessing: bool | None = None
    smallest_group: Annotated[int, Field(ge=1)] = 1
    largest_megabytes: Annotated[float, Field(gt=0)] = 1000.0
    smallest_examples: Annotated[int, Field(ge=1)] = 1
    clip: Annotated[float, Field(gt=0, le=1e30)] | None = None
    noise: Annotated[float, Field(gt=0, le=1e6)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    epsilon: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Policy:
        if self.noise is not None and self.clip is None:
            raise ValueError("noise needs clip, since the noise is measured by the largest change that may be sent")
        if self.epsilon is not None and self.noise is None:
            raise ValueError("epsilon needs noise: without it every answer spends an infinite epsilon")
        return self

    @property
    def sends_evaluation(self) -> bool:
        """Whether loss and accuracy may leave."""
        return self.noise is None if self.evaluation is None else self.evaluation

    @property
    def sends_preprocessing(self) -> bool:
        """Whether sums over columns and the values of categories may leave."""
        if self.preprocessing is not None:
            return self.preprocessing
        return self.summaries and self.noise is None and ANY in self.payloads

    @property
    def std(self) -> float:
        """Standard deviation of the noise on each number, 0 for none."""
        return (self.noise or 0.0) * (self.clip or 0.0)

    def check_algorithm(self, algorithm: str | Algorithm) -> None:
        """Refuse a method that is not listed.

        A name is judged before anything is imported: checked first, ``module:Class`` runs no code that the site has
        not listed.
        """
        if isinstance(algorithm, str) and ":" in algorithm:
            name, allowed = algorithm, algorithm in self.algorithms
        else:
            cls = algorithm_class(algorithm) if isinstance(algorithm, str) else type(algorithm)
            place = f"{cls.__module__}:{cls.__qualname__}"
            # anybody can call a class fedora: a name counts for the class that is registered under it only
            registered = available_algorithms().get(cls.name) is cls
            name, allowed = cls.name if registered else place, place in self.algorithms
            if registered:
                allowed |= BUILT_IN in self.algorithms and cls.__module__.startswith("coterie.algorithms.")
                allowed |= cls in [algorithm_class(known) for known in self.algorithms if _is_name(known)]
        if not allowed:
            raise Refused(f"policy.algorithms does not allow {name}")

    def check_model(self, model: str) -> None:
        """Refuse a model of somebody's own that is not listed, by its name: a factory is code."""
        if model not in self.models and (":" in model or BUILT_IN not in self.models):
            raise Refused(f"policy.models does not allow {model}")

    def check_examples(self, examples: int) -> None:
        """Refuse to take part with fewer training examples than ``smallest_examples``; the sentence tells no number."""
        if examples < self.smallest_examples:
            raise Refused("policy.smallest_examples does not allow a site with so few training examples to take part")

    def check_preprocessing(self) -> None:
        """Refuse to tell sums over columns and the values of categories."""
        if not self.sends_preprocessing:
            raise Refused("policy.preprocessing does not allow sums over columns and values of categories to leave")

    def check_answer(self, values: Mapping[str, Value], peers: Mapping[str, Tensor], algorithm: Algorithm) -> None:
        """Refuse an answer that may not leave.

        Parameters
        ----------
        values : mapping
            What a client method returns, by name, one row for each client.
        peers : mapping
            For values that are meant for other clients, their numbers ``(k, m)`` by name.
        algorithm : Algorithm
            The method.
        """
        size = 0
        for name, value in values.items():
            if ANY not in self.payloads and name not in self.payloads:
                raise Refused(f"policy.payloads does not allow {algorithm.name} to send {name}")
            if isinstance(value, Tensor):
                key = "numbers" if value.ndim <= 1 else "summaries"
                if not getattr(self, key):
                    raise Refused(f"policy.{key} does not allow {algorithm.name} to send {name}")
                if self.noise is not None and not value.is_floating_point():
                    raise Refused(f"policy.noise cannot cover {name} of {algorithm.name}, which is no real number")
            size += sum(weigh(value, len(value)).values())
        size += sum(index.element_size() * index[:1].numel() for index in peers.values())
        if size > self.largest_megabytes * MEGABYTE:
            raise Refused(f"policy.largest_megabytes does not allow an answer of {algorithm.name} of this size")
