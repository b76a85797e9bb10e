"""The data of one site as a federation of one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.deploy.reading import Found, read_data
from coterie.deploy.schema import differences
from coterie.deploy.sections import SourceData, SplitData, TableData
from coterie.deploy.sitefile import SiteFile
from coterie.errors import CoterieError
from coterie.federation import ClientData, Federation
from coterie.federation.arrays import Arrays
from coterie.federation.data import Normal
from coterie.federation.folds import Fold, refolded
from coterie.federation.frames import encode, encode_target, infer_schema
from coterie.federation.partition.rule import Sizes
from coterie.federation.partition.shares import split_counts, stratified
from coterie.federation.preparing import standardised
from coterie.federation.schema import Schema
from coterie.training.keys import client_keys

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.int64]


def site_federation(site: SiteFile, *, seed: int, schema: Schema | None, fold: Fold | None = None) -> Federation:
    """The one client of a site, with its training, validation and test data.

    Which examples are in which part depends on the seed and the name of the client alone. A source of Coterie is
    divided as the simulator divides it, so that its client is the simulator's, bit for bit.

    Parameters
    ----------
    site : SiteFile
        The site.
    seed : int
        Seed of the run.
    schema : Schema, optional
        What every site's data must be like; left out, nothing is compared, and a table is what it seems to be.
    fold : Fold, optional
        Divides what is not for testing anew, see `coterie.federation.folds`; a table with ``standardise: own`` keeps
        the mean and standard deviation of the run itself.

    Raises
    ------
    CoterieError
        The data cannot be read, or differ from the schema: the message says how.
    """
    found = read_data(site, seed=seed, schema=schema, fold=fold)
    if schema is not None and (sentences := site_differences(site, schema, found)):
        more = f" And {len(sentences) - 1} more: coterie deploy check {site.path}" if len(sentences) > 1 else ""
        raise CoterieError(f"{site.path}: {sentences[0]}{more}")
    federation = divided(site, found, seed=seed, schema=schema)
    if fold is None or isinstance(site.data, SourceData):  # which is divided as the simulator does
        return federation
    return refolded(federation, fold, seed)


def site_differences(site: SiteFile, schema: Schema, found: Found) -> list[str]:
    """What has to change before a site's file and its data fit the schema, see `differences`."""
    said = []
    if isinstance(site.data, TableData):
        for key, its in (("target", schema.target), ("task", schema.task)):
            own = getattr(site.data, key)
            if own is not None and its is not None and own != its:
                said.append(f"data.{key} is {own} in {site.path.name}, but {its} in the schema: leave it out.")
    return said + differences(schema, found, listed_features(site))


def listed_features(site: SiteFile) -> Sequence[str] | None:
    """The columns that a site with a table lists; None where it has no table or lists none."""
    return site.data.features if isinstance(site.data, TableData) else None


def divided(site: SiteFile, found: Found, *, seed: int, schema: Schema | None) -> Federation:
    """Encode and split data that were read and fit the schema.

    Raises
    ------
    CoterieError
        There are too few examples, or a table without a schema has a column that cannot be used.
    """
    if found.federation is not None:
        return found.federation
    data = site.data
    assert isinstance(data, SplitData)
    arrays: Mapping[str, Arrays]
    if isinstance(data, TableData):
        schema = _schema_of_table(site, data, found, schema)
        labels = encode_target(found.tables["all"], schema)
    else:
        labels = found.arrays["all"].targets.numpy()
    regression = np.issubdtype(labels.dtype, np.floating)
    strata = np.zeros(len(labels), dtype=np.int64) if regression else labels
    own = split_rows(strata, _sizes(data), seed=seed, client=site.client)
    source: dict[str, Any] = {"source": data.kind}
    if isinstance(data, TableData) and schema is not None:
        if data.standardise == "own":
            schema = standardised(schema, found.tables["all"].iloc[own["train"]])
        arrays = _encoded(found.tables, schema)
        source["schema"] = schema.as_dict()
    else:
        arrays = found.arrays
    whole = arrays["all"]
    if named := whole.labels or (None if schema is None else schema.labels):
        source["class_names"] = list(named)
    parts = {part: Arrays(whole.inputs[rows], whole.targets[rows]) for part, rows in own.items()}
    parts |= {part: of_its_own for part, of_its_own in arrays.items() if part != "all"}
    splits = {part: _one(of_part, schema) for part, of_part in parts.items()}
    classes = _classes(whole, [part.targets for part in parts.values()]) if schema is None else schema.classes
    return Federation(
        names=(site.client,),
        task="regression" if regression else "classification",
        classes=classes,
        source=source,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
    ).validate()


def split_rows(strata: Rows, sizes: Sizes, *, seed: int, client: str) -> dict[str, Rows]:
    """Which rows are for training, validation and test, every class in like proportion.

    Parameters
    ----------
    strata : ndarray
        The class of every row, ``(n,)``.
    sizes : Sizes
        Numbers or fractions.
    seed, client : int, str
        All that the draw depends on.

    Raises
    ------
    CoterieError
        Nothing would be left to train on.
    """
    try:
        counts = np.array([split_counts(client, len(strata), sizes)])
    except CoterieError as error:
        held = "1 example" if len(strata) == 1 else f"{len(strata)} examples"
        raise CoterieError(
            f"{client} has {held}, too few for validation: {sizes.validation}, test: {sizes.test} and at least 1 to "
            "train on."
        ) from error
    key = int(client_keys(seed, [client], 0, "split")[0])
    order = np.random.Generator(np.random.Philox(key)).permutation(len(strata))
    train, validation, test = stratified([order], strata, counts, int(strata.max(initial=0)) + 1)
    return {"train": train[0], "validation": validation[0], "test": test[0]}


def _sizes(data: SplitData) -> Sizes:
    """What is drawn here: nothing of what has a file of its own."""
    validation = 0 if isinstance(data.validation, Path) else data.validation
    return Sizes("rest", validation, 0 if isinstance(data.test, Path) else data.test)


def _schema_of_table(site: SiteFile, data: TableData, found: Found, schema: Schema | None) -> Schema:
    """The schema or, without one, what the table seems to be; files for validation and test must be like it."""
    if schema is not None:
        return schema
    if data.target is None:
        raise CoterieError(
            f"{site.path}: data.target is missing: which column of {data.table.name} is to be predicted?"
        )
    try:
        inferred = infer_schema(
            found.tables["all"], data.target, data.features, task=data.task, missing=data.missing or "error"
        )
    except CoterieError as error:
        raise CoterieError(f"{data.table}: {error}") from error
    if data.missing == "mark":  # every column, or the inputs of two sites would not be the same columns
        marked = [feature.model_copy(update={"missing": True}) for feature in inferred.features or []]
        inferred = inferred.model_copy(update={"features": marked})
    if sentences := differences(inferred, found, data.features):
        raise CoterieError(f"{site.path}: {sentences[0]}")
    return inferred


def _encoded(tables: Mapping[str, pd.DataFrame], schema: Schema) -> dict[str, Arrays]:
    """Tables as arrays, by the schema's constants."""
    return {
        part: Arrays(
            torch.from_numpy(encode(table, schema.features or [])), torch.from_numpy(encode_target(table, schema))
        )
        for part, table in tables.items()
    }


def _one(arrays: Arrays, schema: Schema | None) -> ClientData:
    """One split of one client; bytes are pictures, whose values go up to 255."""
    normal = None
    if schema is not None and schema.mean is not None and schema.std is not None:
        broadcast = (-1, *[1] * (len(schema.input_shape) - 1))
        mean, std = (torch.tensor(value, dtype=torch.float64).reshape(broadcast) for value in (schema.mean, schema.std))
        normal = Normal(mean, std)
    scale = 1 / 255 if arrays.inputs.dtype == torch.uint8 else 1.0
    scaling = None if schema is None else schema.target_normal
    return ClientData(
        arrays.inputs, arrays.targets, torch.tensor([0, len(arrays)]), scale=scale, normal=normal, target_normal=scaling
    )


def _classes(whole: Arrays, targets: Sequence[Tensor]) -> int:
    """Number of classes, or of targets, where no schema says so."""
    if targets[0].is_floating_point():
        return targets[0].shape[1] if targets[0].ndim > 1 else 1
    if whole.labels is not None:
        return len(whole.labels)
    return 1 + max((int(y.max()) for y in targets if len(y)), default=0)


def sizes_of(federation: Federation) -> Mapping[str, int]:
    """How many examples each part has."""
    return {
        "train": federation.train.total,
        "validation": federation.validation.total,
        "test": federation.test.total,
    }
