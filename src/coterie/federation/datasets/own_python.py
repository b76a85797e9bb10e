"""What a function of the user's gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from coterie.federation.arrays import by_client, examples_of_clients, examples_of_federation
from coterie.federation.called import call, check_name
from coterie.federation.datasets.registry import Options, register_generator
from coterie.federation.examples import Examples
from coterie.federation.federation import Federation


class PythonSource(Options):
    """Options of the source ``python``."""

    own = True

    function: str = Field(description="module:function, which is called with the seed")

    @field_validator("function")
    @classmethod
    def _named(cls, value: str) -> str:
        return check_name(value)


@register_generator("python", "what a function of yours gives", options=PythonSource)
def python(seed: int, options: PythonSource) -> Examples:
    """The examples of a Federation, or of clients with arrays or torch Datasets. Natural groups: ``client``.

    Raises:
        CoterieError: the function is not there or fails, or gives something else.
    """

    def read(given: Any) -> Examples:
        if isinstance(given, Federation):
            return examples_of_federation("python", given)
        return examples_of_clients("python", by_client(given, "federation.function"))

    return call(options.function, seed, Path.cwd(), "federation.function", read)
