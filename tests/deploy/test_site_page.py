"""The reference page of a site's file names every key, and what it shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from site_examples import PATIENTS, patients

from coterie.deploy.checking import check_site
from coterie.deploy.schema import read_schema
from coterie.deploy.sections import KINDS
from coterie.deploy.sitefile import SiteFile
from coterie.federation.schema import Feature, Schema

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "site-file.md").read_text(encoding="utf-8")


def test_the_page_names_every_key() -> None:
    words = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"\w+", code)}
    models = [SiteFile, Schema, Feature, *KINDS.values()]
    keys = {key for model in models for key in model.model_fields} - {"path", "federation"}
    assert keys <= words, keys - words


def test_the_files_on_the_page_fit_each_other(tmp_path: Path) -> None:
    site, schema = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "site.yaml").write_text(site)
    (tmp_path / "schema.yaml").write_text(schema)
    table: pd.DataFrame = patients()
    table.to_csv(tmp_path / "patients.csv", index=False)
    assert read_schema(tmp_path / "schema.yaml") == PATIENTS
    report = check_site(tmp_path / "site.yaml")
    assert (report.differences, report.sizes) == ([], {"train": 30, "validation": 10, "test": 10})
