"""A Hugging Face dataset, whose clients a column names or a partitioner of flwr-datasets makes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator

from coterie.errors import CoterieError, describe
from coterie.federation.arrays import Arrays, as_arrays, examples_of_clients
from coterie.federation.datasets.files import data_directory
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples
from coterie.federation.federation import client_names
from coterie.federation.frames import checked_frame
from coterie.federation.places import Origin, digest_of
from coterie.federation.table_options import TableOptions
from coterie.federation.tables import about_rows, examples_of, full_texts, require, require_named

OF_FEATURES = ("features", "categorical", "ignore", "task", "labels", "missing", "preprocessing")
"""Options that say how columns of a table become inputs and classes."""


class HuggingFaceSource(TableOptions):
    """Options of the source ``huggingface``; those of tables about features are for where there are no ``inputs``."""

    dataset: str = Field(description="its name on the hub, or a folder that save_to_disk has written")
    subset: str | None = Field(None, description="name of its configuration, where it has several")
    part: str = Field("train", description="which of its splits is divided among the clients")
    client: str | None = Field(None, description="column that says whose a row is")
    partitioner: str | None = Field(None, description="class of flwr_datasets.partitioner that makes the clients")
    partitioner_options: dict[str, Any] = Field({}, description="its arguments, such as num_partitions")
    inputs: str | None = Field(None, description="column of pictures or arrays, instead of features")

    @model_validator(mode="after")
    def _one_way(self) -> HuggingFaceSource:
        if (self.client is None) == (self.partitioner is None):
            raise ValueError("give client, a column, or partitioner, a class of flwr_datasets.partitioner")
        if self.inputs is not None and not isinstance(self.target, str):
            raise ValueError("inputs of one column have a single target")
        if self.inputs is not None and self.standardise_targets is True:
            raise ValueError("standardise_targets is for tables, and inputs are none: leave it out")
        # a configuration that was written by a run lists what was left out, too
        stated = [key for key in OF_FEATURES if getattr(self, key) != type(self).model_fields[key].default]
        if self.inputs is not None and stated:
            raise ValueError(f"{stated[0]} is for columns of a table, and has no effect beside inputs: leave it out")
        return self


@register_source(
    "huggingface", "a Hugging Face dataset; needs the extra hf", "none, or a folder", options=HuggingFaceSource
)
def huggingface(data_dir: Path | None, options: HuggingFaceSource) -> Examples:
    """The rows of one of its splits. Natural groups: ``client``.

    Raises:
        CoterieError: the packages are not installed, or there is no such dataset, split, column or partitioner.
    """
    dataset = _loaded(data_dir, options)
    where = Origin(options.dataset, [(options.dataset, "row", 0)])
    columns = [name for name in dataset.column_names if name != options.inputs]
    if options.partitioner is not None:
        parts = _partitions(dataset, options)
        names = client_names(len(parts))
        clients = [name for name, part in zip(names, parts, strict=True) for _ in range(len(part))]
        dataset = _library("datasets").concatenate_datasets(parts)
    table = checked_frame(dataset.select_columns(columns).to_pandas(), Path(options.dataset))
    if options.client is not None:
        require(table, options.client, "client", where)
        clients = full_texts(table, options.client, "client", where).tolist()
    known = getattr(dataset.features.get(options.targets[0]), "names", None)  # of a column of classes
    if options.inputs is not None:
        return _of_inputs(dataset, table, clients, options, where, known)
    if known and options.labels is None and options.classes is None:
        options = options.model_copy(update={"classes": len(known)})
    besides = [] if options.client is None else [options.client]
    found = examples_of("huggingface", table, clients, options, where=where, besides=besides)
    return replace(found, checksum=digest_of(table))


def _of_inputs(
    dataset: Any, table: pd.DataFrame, clients: list[str], options: HuggingFaceSource, where: Origin, known: Any
) -> Examples:
    """One column of pictures or arrays as inputs."""
    assert options.inputs is not None
    if options.inputs not in dataset.column_names:
        raise CoterieError(
            f"{where.name} has no column {options.inputs!r} (federation.inputs): its columns are "
            f"{', '.join(dataset.column_names[:8])}."
        )
    require_named(table, options, where)
    whole = as_arrays(_stacked(dataset[options.inputs], options), np.array(table[options.targets[0]]), where.name)
    owner, names = pd.factorize(np.array(clients, dtype=object), sort=True)
    order = np.argsort(owner, kind="stable")  # rows of one client are together
    rows = np.split(order, np.cumsum(np.bincount(owner))[:-1])
    arrays = {
        name: {"all": Arrays(whole.inputs[of], whole.targets[of])}
        for name, of in zip(names.tolist(), rows, strict=True)
    }
    found = examples_of_clients("huggingface", arrays, options.classes or (len(known) if known else None))
    said = about_rows(table, options, where, order)
    if any(column is not None for column in said.values()):  # which the checksum of inputs and targets does not cover
        said["checksum"] = hashlib.sha256((found.digest + digest_of(table)).encode()).hexdigest()
    return replace(found, **said)


def _stacked(values: Any, options: HuggingFaceSource) -> NDArray[Any]:
    """Pictures as ``(N, channels, height, width)``, arrays as they are."""
    arrays = [np.asarray(value) for value in values]
    if shapes := {array.shape for array in arrays} - {arrays[0].shape}:
        raise CoterieError(
            f"The column {options.inputs!r} of {options.dataset} holds inputs of the shapes {arrays[0].shape} and "
            f"{min(shapes)}: bring them to one."
        )
    stacked = np.stack(arrays)
    if not hasattr(next(iter(values)), "getbands"):  # no picture of Pillow
        return stacked
    return stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)


def _loaded(data_dir: Path | None, options: HuggingFaceSource) -> Any:
    """The split of the dataset, from a folder or from the hub."""
    datasets = _library("datasets")
    folders = (Path(options.dataset), data_directory(data_dir) / options.dataset)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    try:
        if folder is None:
            return datasets.load_dataset(options.dataset, options.subset, split=options.part)
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # whatever the library runs into: no network, no such dataset or split
        raise CoterieError(f"federation.dataset: {options.dataset} cannot be loaded: {describe(error)}.") from error
    if not isinstance(loaded, dict):
        return loaded
    if options.part not in loaded:
        raise CoterieError(
            f"federation.part: {options.dataset} has no split {options.part!r}, only {', '.join(loaded)}: choose one."
        )
    return loaded[options.part]


def _partitions(dataset: Any, options: HuggingFaceSource) -> list[Any]:
    """The dataset of each client."""
    try:
        kind = getattr(_library("flwr_datasets.partitioner"), options.partitioner or "")
        partitioner = kind(**options.partitioner_options)
        partitioner.dataset = dataset
        return [partitioner.load_partition(i) for i in range(partitioner.num_partitions)]
    except CoterieError:
        raise
    except Exception as error:  # its arguments are the user's
        raise CoterieError(f"federation.partitioner: {options.partitioner} failed: {describe(error)}.") from error


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise CoterieError(
            f"The source huggingface needs {name.partition('.')[0]}, which is not installed: install it with pip "
            "install 'coterie[hf]'."
        ) from error
