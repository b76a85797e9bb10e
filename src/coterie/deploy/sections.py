"""The section ``data:`` of a site's file: one class for each kind of data, told apart by its first key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError, field_validator

from coterie.config.explain import describe, explain, nearest
from coterie.errors import CoterieError
from coterie.federation.called import check_name
from coterie.federation.config import FederationConfig, section_for
from coterie.federation.federation import Task

Model = TypeVar("Model", bound=BaseModel)

FileName = Annotated[Path, Field(strict=False)]


def _amount(value: Any) -> Any:
    """A number of examples, a fraction, or a file of its own."""
    if isinstance(value, float) and not 0 <= value < 1:
        raise ValueError(f"a fraction lies between 0 and 1; {value:g} does not (a number of examples is whole)")
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        raise ValueError(f"a number of examples is not negative, but {value} is")
    if isinstance(value, str) and value:
        return Path(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Path):
        raise ValueError(f"give a fraction, a number of examples or a file, not {describe(value)}")
    return value


Amount = Annotated[int | float | Path, BeforeValidator(_amount)]


class DataSection(BaseModel):
    """What every kind has; sizes are fractions, numbers of examples, or files of their own."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    kind: ClassVar[str]

    def below(self, folder: Path) -> Self:
        """The same with relative paths starting from ``folder``."""
        changes = {
            key: folder / value for key in type(self).model_fields if isinstance(value := getattr(self, key), Path)
        }
        return self.model_copy(update=changes)


class SplitData(DataSection):
    """Data that are split here: a random part to validate, one to test, and the rest to train."""

    validation: Amount = 0.2
    test: Amount = 0.2

    @field_validator("test")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value == 0:
            raise ValueError("must be above 0: a site needs examples to test on")
        return value


class TableData(SplitData):
    """``table: patients.csv``: a row an example; .csv, .csv.gz or .parquet."""

    kind = "table"

    table: FileName
    target: str | None = None
    features: list[str] | None = None
    task: Task | None = None
    missing: Literal["error", "mark"] | None = None
    standardise: Literal["schema", "own"] = "schema"


class NpzData(SplitData):
    """``npz: file.npz``: arrays of inputs (n, ...) and targets (n,)."""

    kind = "npz"

    npz: FileName
    inputs: str = "x"
    targets: str = "y"


class FolderData(SplitData):
    """``folder: pictures``: one sub-folder of pictures a class."""

    kind = "folder"

    folder: FileName
    size: Annotated[int, Field(ge=1, le=4096)] | None = None
    grey: bool = False


class PythonData(SplitData):
    """``python: module:function``, called with the seed."""

    kind = "python"

    python: str

    @field_validator("python")
    @classmethod
    def _named(cls, value: str) -> str:
        return check_name(value)

    @field_validator("validation", "test")
    @classmethod
    def _no_file(cls, value: Any) -> Any:
        if isinstance(value, Path):
            raise ValueError("give a fraction or a number; the function has no further files")
        return value


class SourceData(DataSection):
    """``source: heart-disease`` with ``client: cleveland``: one client of a source of Coterie."""

    kind = "source"

    client: str | None = None
    data_dir: FileName | None = None
    federation: SerializeAsAny[FederationConfig]


KINDS: dict[str, type[DataSection]] = {
    section.kind: section for section in (TableData, NpzData, FolderData, PythonData, SourceData)
}


def data_section(value: Any) -> Any:
    """The section of the kind whose key is there.

    Raises
    ------
    ValueError
        None or several are there, or a key or a value is wrong; the message names it.
    """
    if isinstance(value, DataSection):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping such as {{table: patients.csv, target: sick}}, not {describe(value)}")
    kinds = [kind for kind in KINDS if kind in value]
    if not kinds:
        near = next((found for key in value if (found := nearest(str(key), list(KINDS)))), None)
        hint = f"did you mean {near}?" if near else f"one of {', '.join(KINDS)} says where the data are"
        raise ValueError(f"its keys are {', '.join(map(str, value)) or 'none'}: {hint}")
    if len(kinds) > 1 and "source" not in kinds:
        raise ValueError(f"{' and '.join(kinds)} are both there: keep one")
    if "source" in kinds:
        return _source(value)
    return _validated(KINDS[kinds[0]], value)


def _source(value: Mapping[str, Any]) -> SourceData:
    """The keys of the section ``federation:``, with ours beside them."""
    mine = {"client", "data_dir"} - set(section_for(value).model_fields)  # a table's column has the name client
    own = {key: value[key] for key in value if key in mine}
    section = {"partition": {"rule": "natural"}, **{key: value[key] for key in value if key not in own}}
    federation = _validated(section_for(section), section)
    return _validated(SourceData, {**own, "federation": federation})


def _validated(model: type[Model], value: Mapping[str, Any]) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ValueError(explain(error, value, model)[1].removesuffix(".")) from error
    except CoterieError as error:
        raise ValueError(str(error).removesuffix(".")) from error
