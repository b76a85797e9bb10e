"""A site's own file: paths, defaults, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_examples import site

from coterie.deploy.sections import SourceData, TableData
from coterie.deploy.sitefile import SiteFile
from coterie.errors import CoterieError


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    read = site(tmp_path, {"table": "data/patients.csv", "target": "sick", "test": "later.csv"}, state="own/state")
    assert isinstance(read.data, TableData)
    assert read.data.table == tmp_path / "data" / "patients.csv"
    assert (read.data.test, read.data.validation) == (tmp_path / "later.csv", 0.2)
    assert (read.state, read.log_file) == (tmp_path / "own" / "state", tmp_path / "own" / "site.log")
    assert read.schema_path == tmp_path / "schema.yaml"


def test_defaults_and_absolute_paths(tmp_path: Path) -> None:
    read = site(tmp_path, {"npz": "/data/x.npz"}, log="/var/log/site.log", policy=None)
    assert (read.state, read.log_file, read.policy) == (tmp_path / "state", Path("/var/log/site.log"), {})
    assert read.data.npz == Path("/data/x.npz")  # type: ignore[attr-defined]


def test_a_source_takes_the_keys_of_the_section_federation(tmp_path: Path) -> None:
    read = site(tmp_path, {"source": "synthetic", "clients": 3, "client": "client-01", "test": 0.3})
    assert isinstance(read.data, SourceData)
    assert read.data.client == "client-01"
    assert read.data.federation.partition.rule == "natural"
    assert (read.data.federation.test, read.data.federation.options.clients) == (0.3, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("clent: a\ndata: {npz: x}", "unknown key clent: did you mean client?"),
        ("client: a b\ndata: {npz: x}", "client: 'a b' is no name of a site"),
        ("client: a", "data is missing."),
        ("client: a\ndata: {}", "data: its keys are none: one of table, npz, folder, python, source says where"),
        ("client: a\ndata: {tabel: x.csv}", "data: its keys are tabel: did you mean table?"),
        ("client: a\ndata: {table: x.csv, npz: y}", "data: table and npz are both there: keep one."),
        ("client: a\ndata: {table: x.csv, targt: y}", "data: unknown key targt: did you mean target?"),
        ("client: a\ndata: {table: x.csv, target: 3}", "data: target must be text, not 3."),
        ("client: a\ndata: {npz: x, test: 1.5}", "data: test: a fraction lies between 0 and 1; 1.5 does not"),
        ("client: a\ndata: {npz: x, test: 0}", "data: test: must be above 0"),
        ("client: a\ndata: {npz: x, validation: -1}", "data: validation: a number of examples is not negative"),
        ("client: a\ndata: {python: load}", "data: python: 'load' is not of the form module:function."),
        ("client: a\ndata: {python: 'm:f', test: t.csv}", "data: test: give a fraction or a number"),
        ("client: a\ndata: {source: digitz}", "data: source: Unknown source 'digitz'. Did you mean 'digits'?"),
        ("client: a\ndata: {source: synthetic, clints: 3}", "data: unknown key clints: did you mean client"),
        ("client: a\ndata: {npz: x}\npolicy: 3", "policy must be a mapping of keys to values, not 3."),
        ("client: a\ndata: {npz: x}\npath: y", "unknown key path"),
        ("- a", "must hold keys and values"),
        ("client: a\nclient: b", "line 2, column 1: not valid YAML: the key 'client' is given twice."),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_file_and_the_key(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(CoterieError) as caught:
        SiteFile.read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert sentence in message
    assert "\n" not in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"site\.yaml: cannot be read \(No such file"):
        SiteFile.read(tmp_path / "site.yaml")
