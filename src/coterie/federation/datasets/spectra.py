"""Plants by the light that they reflect: nitrogen of leaves, and grain yield of wheat; both are regressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch

from coterie.errors import CoterieError
from coterie.federation.datasets.files import find
from coterie.federation.datasets.registry import register_source
from coterie.federation.datasets.table import numbers, read_table
from coterie.federation.examples import Examples


@register_source(
    "agriculture",
    "leaf nitrogen (g per square metre) of 178 leaves of 8 crops from their reflectance at 1,901 wavelengths",
    "agriculture/ely_plsr_data.csv (or .csv.gz), or leaf-spectra/ely_plsr_data.csv",
)
def agriculture(data_dir: Path | None) -> Examples:
    """Reflectance ``(N, 1901)`` float32 as fractions, and nitrogen ``(N, 1)``. Natural groups: ``species``.

    The data of Ely et al. 2019 (EcoSIS, doi 10.21232/C2GM2Z), not those of the FEDORA paper, which are not public.

    Raises:
        CoterieError: the file is missing or damaged, lacks a column or holds a value that is no number.
    """
    # the file has reflectance in percent
    return _spectra(
        "agriculture", data_dir, "ely_plsr_data.csv", "N_g_m2", r"Wave_\d+", 100.0, "Common_Name", "species", _hyphened
    )


@register_source(
    "wheat",
    "grain yield of 776 wheat lines in 28 field trials from canopy reflectance at 250 wavelengths",
    "wheat/wheatHTP_E1.csv (or .csv.gz), or leaf-spectra/wheatHTP_E1.csv",
)
def wheat(data_dir: Path | None) -> Examples:
    """Reflectance ``(N, 250)`` float32 and yield under drought ``(N, 1)``. Natural groups: ``trial``.

    Trial means have been taken out of the published yields, so clients differ less than fields do.

    Raises:
        CoterieError: the file is missing or damaged, lacks a column or holds a value that is no number.
    """
    # the file's unit is not stated; its largest value is 1,941
    return _spectra(
        "wheat",
        data_dir,
        "wheatHTP_E1.csv",
        "YLD_E1",
        r"R_wl\d+",
        1000.0,
        "trial",
        "trial",
        lambda trial: f"trial-{trial:0>2}",
    )


def _hyphened(name: str) -> str:
    return name.replace(" ", "-")


def _spectra(
    source: str,
    data_dir: Path | None,
    file: str,
    target: str,
    wavelengths: str,
    divisor: float,
    column: str,
    group: str,
    name: Callable[[str], str],
) -> Examples:
    """A table of spectra: columns that match ``wavelengths`` are inputs, ``column`` tells the group of a row."""
    places = [f"{folder}/{file}{ending}" for folder in (source, "leaf-spectra") for ending in ("", ".gz")]
    path = find(data_dir, source, places, f"the table {file} (or {file}.gz)")
    table = read_table(path, [column, target])
    inputs = [str(c) for c in table.columns if re.fullmatch(wavelengths, str(c))]
    if not inputs:
        raise CoterieError(
            f"{path} has no column of reflectance, such as {wavelengths}. Replace it by the published file."
        )
    return Examples(
        source,
        torch.from_numpy(numbers(table, inputs, path) / divisor).float(),
        torch.from_numpy(numbers(table, [target], path)).float(),
        classes=1,
        task="regression",
        groups={group: [name(str(value)) for value in table[column]]},
    )
