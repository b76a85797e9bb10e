"""The data of one site as a federation of one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.deploy.reading import Arrays, Found, read_data
from coterie.deploy.schema import differences
from coterie.deploy.sections import SplitData, TableData
from coterie.deploy.sitefile import SiteFile
from coterie.errors import CoterieError
from coterie.federation import ClientData, Federation
from coterie.federation.data import Normal
from coterie.federation.frames import encode, encode_target, infer_schema, numbers
from coterie.federation.partition.rule import Sizes
from coterie.federation.partition.shares import split_counts, stratified
from coterie.federation.schema import Schema
from coterie.training.keys import client_keys

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.int64]


def site_federation(site: SiteFile, *, seed: int, schema: Schema | None) -> Federation:
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

    Raises
    ------
    CoterieError
        The data cannot be read, or differ from the schema: the message says how.
    """
    found = read_data(site, seed=seed, schema=schema)
    if schema is not None and (sentences := differences(schema, found, listed_features(site))):
        more = f" And {len(sentences) - 1} more: coterie deploy check {site.path}" if len(sentences) > 1 else ""
        raise CoterieError(f"{site.path}: {sentences[0]}{more}")
    return divided(site, found, seed=seed, schema=schema)


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
    assert isinstance(site.data, SplitData)
    rows = found.rows
    if isinstance(site.data, TableData):
        schema = _schema_of_table(site, site.data, rows["all"], schema)
        labels: Any = encode_target(rows["all"], schema)
    else:
        labels = rows["all"].targets.numpy()  # type: ignore[union-attr]
    regression = schema.task == "regression" if schema is not None else np.issubdtype(labels.dtype, np.floating)
    strata = np.zeros(len(labels), dtype=np.int64) if regression else labels
    own = split_rows(strata, _sizes(site.data), seed=seed, client=site.client)
    if isinstance(site.data, TableData) and site.data.standardise == "own":
        assert schema is not None
        schema = _standardised(schema, rows["all"].iloc[own["train"]])  # type: ignore[union-attr]
    whole = _tensors(rows["all"], schema)
    parts = {part: (whole[0][index], whole[1][index]) for part, index in own.items()}
    for part in ("validation", "test"):
        if part in rows:
            parts[part] = _tensors(rows[part], schema)
    classes = schema.classes if schema is not None else _classes(rows["all"], [y for _, y in parts.values()])
    normal = None
    if schema is not None and schema.mean is not None and schema.std is not None:
        broadcast = (-1, *[1] * (len(schema.input_shape) - 1))
        mean, std = (torch.tensor(value, dtype=torch.float64).reshape(broadcast) for value in (schema.mean, schema.std))
        normal = Normal(mean, std)
    splits = {part: _one(*pair, normal) for part, pair in parts.items()}
    return Federation(
        names=(site.client,),
        task="regression" if regression else "classification",
        classes=classes,
        source={"source": next(iter(site.data.model_fields_set & {"table", "npz", "folder", "python"}))},
        **splits,
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
        raise CoterieError(
            f"{client} has {len(strata)} examples, too few for validation: {sizes.validation}, test: {sizes.test} and "
            "at least 1 to train on."
        ) from error
    key = int(client_keys(seed, [client], 0, "split")[0])
    order = np.random.Generator(np.random.Philox(key)).permutation(len(strata))
    train, validation, test = stratified([order], strata, counts, int(strata.max(initial=0)) + 1)
    return {"train": train[0], "validation": validation[0], "test": test[0]}


def _sizes(data: SplitData) -> Sizes:
    """What is drawn here: nothing of what has a file of its own."""
    validation = 0 if isinstance(data.validation, Path) else data.validation
    return Sizes("rest", validation, 0 if isinstance(data.test, Path) else data.test)


def _schema_of_table(site: SiteFile, data: TableData, table: Any, schema: Schema | None) -> Schema:
    if schema is not None:
        return schema
    if data.target is None:
        raise CoterieError(
            f"{site.path}: data.target is missing: which column of {data.table.name} is to be predicted?"
        )
    try:
        inferred = infer_schema(table, data.target, data.features, task=data.task, missing=data.missing or "error")
    except CoterieError as error:
        raise CoterieError(f"{data.table}: {error}") from error
    if data.missing == "mark":  # every column, or the inputs of two sites would not be the same columns
        marked = [feature.model_copy(update={"missing": True}) for feature in inferred.features or []]
        return inferred.model_copy(update={"features": marked})
    return inferred


def _standardised(schema: Schema, table: pd.DataFrame) -> Schema:
    """Numbers by mean and standard deviation of this site's training rows."""
    features = []
    for feature in schema.features or []:
        cells = numbers(table[feature.name])
        known = cells.values[~cells.missing & ~cells.wrong]
        if feature.kind == "number" and len(known):
            feature = feature.model_copy(update={"mean": float(known.mean()), "std": float(known.std()) or 1.0})
        features.append(feature)
    return schema.model_copy(update={"features": features})


def _tensors(rows: Any, schema: Schema | None) -> tuple[Tensor, Tensor]:
    if isinstance(rows, Arrays):
        return rows.inputs, rows.targets
    assert schema is not None
    return torch.from_numpy(encode(rows, schema.features or [])), torch.from_numpy(encode_target(rows, schema))


def _one(inputs: Tensor, targets: Tensor, normal: Normal | None) -> ClientData:
    scale = 1 / 255 if inputs.dtype == torch.uint8 else 1.0
    return ClientData(inputs, targets, torch.tensor([0, len(inputs)]), scale=scale, normal=normal)


def _classes(rows: Any, targets: Sequence[Tensor]) -> int:
    """Number of classes, or of targets, where no schema says so."""
    if targets[0].is_floating_point():
        return targets[0].shape[1] if targets[0].ndim > 1 else 1
    if rows.labels is not None:
        return len(rows.labels)
    return 1 + max((int(y.max()) for y in targets if len(y)), default=0)


def sizes_of(federation: Federation) -> Mapping[str, int]:
    """How many examples each part has."""
    return {
        "train": federation.train.total,
        "validation": federation.validation.total,
        "test": federation.test.total,
    }
