"""No examples: they are at the sites of a real federation, each of which says in its own file where."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from coterie.errors import CoterieError
from coterie.federation.datasets.registry import register_source
from coterie.federation.table_options import TableOptions

AT_SITES = "sites"
"""The name of this source."""

KNOWN = frozenset(
    ["target", "features", "categorical", "ignore", "task", "labels", "classes", "missing", "preprocessing", "split",
     "standardise_targets"]
)  # fmt: skip
"""Options of tables that mean at real sites what they mean in a simulation."""


class SitesSource(TableOptions):
    """What the columns of the sites' tables are, where the sites prepare these together; else nothing."""

    own = False

    target: str | list[str] | None = Field(  # type: ignore[assignment]  # only where sites prepare tables together
        None, description="column to predict, where preprocessing is federated; several are a regression"
    )
    preprocessing: Literal["federated"] | None = Field(  # type: ignore[assignment]
        None, description="federated: sites with tables standardise them together; left out, by their schema.yaml"
    )

    @model_validator(mode="after")
    def _prepared_together(self) -> Self:
        if self.preprocessing is None:
            if said := [key for key in TableOptions.model_fields if self._said(key)]:
                raise ValueError(
                    f"{said[0]} means nothing where sites follow a schema.yaml: remove it, or say preprocessing: "
                    "federated"
                )
            return self
        if self.target is None:
            raise ValueError("preprocessing: federated needs target, the column to predict")
        if self.regression == (self.labels is not None or self.classes is not None):
            raise ValueError(
                "preprocessing: federated needs the classes under labels (or their number under classes), since no "
                "site knows those of the others; or task: regression"
            )
        if said := [key for key in TableOptions.model_fields if key not in KNOWN and self._said(key)]:
            raise ValueError(f"{said[0]} is for simulations, and sites that prepare tables together know nothing of it")
        return self

    @model_serializer(mode="wrap")
    def _without_idle(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Nothing of tables where nothing is said of them."""
        tree: dict[str, Any] = dump(self)
        idle = TableOptions.model_fields if self.preprocessing is None else ()
        return {key: value for key, value in tree.items() if key not in idle}

    def _said(self, key: str) -> bool:
        """Whether an option is another than where nothing is said of it."""
        return bool(getattr(self, key) != type(self).model_fields[key].default)

    @property
    def regression(self) -> bool:
        """Whether numbers are to be predicted."""
        return self.task == "regression" or isinstance(self.target, list)


@register_source(
    AT_SITES,
    "the data are at real sites, see coterie deploy; no partition",
    "none: each site's own file says where",
    options=SitesSource,
)
def sites(data_dir: Path | None, options: SitesSource) -> NoReturn:
    """Refuse: nothing can be read here."""
    raise CoterieError(
        "federation.source: sites says that the data are at real sites, so nothing can be read or simulated here: "
        "coterie deploy init writes what the server and the sites run."
    )
