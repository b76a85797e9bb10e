"""report.html: every number is that of the tables, nothing is fetched, and what is missing is said."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from hand_made import BASE, made
from typer.testing import CliRunner

from coterie.cli import app
from coterie.errors import CoterieError
from coterie.reports import open_run
from coterie.reports.page import page
from coterie.reports.page.packing import packed, unpacked
from coterie.runs import About, History, RunDirectory, save_relations
from reports.pages import Page

WAYS = ("up", "down", "peer")


@pytest.fixture(scope="module")
def shown(finished: Path) -> Page:
    return Page((finished / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def labels(finished: Path) -> dict[str, tuple[str, str]]:
    rows = json.loads((finished / "summary.json").read_text())["rows"]
    return {row["label"]: (row["algorithm"], row["variant"] or "") for row in rows}


def of(table: pd.DataFrame, system: tuple[str, str]) -> pd.DataFrame:
    return table[(table["algorithm"] == system[0]) & (table["variant"] == system[1])]


def test_a_run_ends_with_its_page(finished: Path, shown: Page) -> None:
    assert shown.data["about"]["name"] == "small"
    assert shown.data["labels"] == ["local", "fedavg", "fedora (released)", "feddwa"]
    assert "not whole" not in shown.text


def test_curves_are_those_of_the_history(finished: Path, shown: Page, labels: dict[str, tuple[str, str]]) -> None:
    history = pd.read_parquet(finished / "history.parquet")
    for split in ("test", "validation"):
        assert set(shown.data["curves"][split]) == set(labels)
        for label, curve in shown.data["curves"][split].items():
            rows = of(history, labels[label])
            wanted = rows[(rows["metric"] == "accuracy") & (rows["split"] == split)]
            assert curve["round"] == [0, 2, 4]
            for place, round in enumerate(curve["round"]):
                values = wanted[wanted["round"] == round]["value"].to_numpy()
                assert len(values) == 2 == curve["seeds"][place]
                assert curve["mean"][place] == pytest.approx(values.mean(), abs=1e-15)
                assert curve["std"][place] == pytest.approx(values.std(ddof=1), abs=1e-15)
                sent = rows[rows["metric"].str.startswith("bytes_") & (rows["phase"] != "evaluate")]
                assert curve["bytes"][place] == sent[sent["round"] <= round]["value"].sum() / 2


def test_gains_are_those_of_the_clients(finished: Path, shown: Page, labels: dict[str, tuple[str, str]]) -> None:
    clients = pd.read_parquet(finished / "clients.parquet")
    clients = clients[(clients["metric"] == "accuracy") & (clients["phase"] == "evaluate")]

    def reached(system: tuple[str, str], seed: int) -> pd.Series:  # the protocol by hand: best validation mean
        rows = of(clients, system)
        rows = rows[rows["seed"] == seed].astype({"client": str})
        means = rows[rows["split"] == "validation"].groupby("round")["value"].mean()
        best = means[means >= means.max() - 1e-12].index.min()
        return rows[(rows["split"] == "test") & (rows["round"] == best)].set_index("client")["value"]

    names = shown.data["clients"]["names"]
    assert set(shown.data["gains"]) == set(labels)
    for label, found in shown.data["gains"].items():
        own = pd.DataFrame({seed: reached(labels[label], seed) for seed in (0, 1)})
        alone = pd.DataFrame({seed: reached(("local", ""), seed) for seed in (0, 1)})
        gain = 100 * (own - alone)
        for place, client in enumerate(found["client"]):
            name = names[client]
            assert found["value"][place] == pytest.approx(own.loc[name].mean(), abs=1e-14)
            assert found["alone"][place] == pytest.approx(alone.loc[name].mean(), abs=1e-14)
            assert found["gain"][place] == pytest.approx(gain.loc[name].mean(), abs=1e-12)
            assert found["gain_std"][place] == pytest.approx(gain.loc[name].std(), abs=1e-12)
            assert found["n"][place] == 20
        assert len(found["client"]) == 4


def test_gains_against_facts_are_of_the_seed_whose_data_are_described(finished: Path, shown: Page) -> None:
    described = shown.data["described"]
    assert described["seed"] == 0
    first = open_run(finished).results["fedavg", "", 0].values - open_run(finished).results["local", "", 0].values
    found = described["gains"]["fedavg"]
    assert [shown.data["clients"]["names"][place] for place in found["client"]] == list(first.index.astype(str))
    np.testing.assert_allclose(found["gain"], 100 * first, rtol=0, atol=1e-12)
    assert found["gain"] != shown.data["gains"]["fedavg"]["gain"]  # which are means over both seeds
    assert "means over 2 divisions of the data" in shown.text
    assert "The gains with seed 0, whose data are described, against" in shown.text


@pytest.mark.parametrize(("seeds", "federation"), [((0,), {}), ((0, 1), {"seed": 0})])
def test_one_division_of_the_data_needs_no_words(tmp_path: Path, seeds: tuple[int, ...], federation: Any) -> None:
    results = {name: {seed: [0.5, 0.6, 0.7, 0.8] for seed in seeds} for name in ("local", "fedavg")}
    html = page(open_run(made(tmp_path / "run", results, federation=BASE["federation"] | federation)))
    shown = Page(html)
    assert shown.data["described"] is None
    assert "division" not in shown.text
    assert "The same gains against" in shown.text


def test_own_curves_strengths_and_traffic(finished: Path, shown: Page, labels: dict[str, tuple[str, str]]) -> None:
    clients = pd.read_parquet(finished / "clients.parquet").astype({"client": str})
    names = shown.data["clients"]["names"]

    def table(rows: pd.DataFrame) -> np.ndarray:
        wide = rows.groupby(["round", "client"])["value"].mean().unstack("client")
        return wide[names].to_numpy()

    for label, found in shown.data["own_curves"].items():
        rows = of(clients, labels[label])
        rows = rows[(rows["metric"] == "accuracy") & (rows["split"] == "test")]
        np.testing.assert_array_equal(unpacked(found["values"]), table(rows))
    strength = shown.data["strengths"]["fedora (released)"]["lambda_k"]
    rows = of(clients, ("fedora", "released"))
    np.testing.assert_array_equal(unpacked(strength["values"]), table(rows[rows["metric"] == "lambda_k"]))
    assert list(shown.data["strengths"]) == ["fedora (released)"]
    for label, found in shown.data["traffic"].items():
        rows = of(clients, labels[label])
        rows = rows[rows["phase"] != "evaluate"]
        for way, values in found.items():
            sent = rows[rows["metric"].str.startswith(f"bytes_{way}")].groupby("client")["value"].sum() / 2
            assert values == sent[names].tolist()
    assert set(shown.data["traffic"]["fedora (released)"]) == {"up", "down"}
    assert set(shown.data["own_curves"]) == set(labels)


def test_links_notes_and_summary(finished: Path, shown: Page, labels: dict[str, tuple[str, str]]) -> None:
    links = shown.data["links"]
    assert set(links) == {"fedora (released)", "feddwa"}
    for label, found in links.items():
        folder = finished / "relations" / "-".join(part for part in labels[label] if part) / "seed0"
        assert found["joined"] == 1
        assert found["rounds"] == sorted(int(path.stem[5:]) for path in folder.glob("*.npz"))
        for name, stored in found["matrices"].items():
            stack = unpacked(stored)
            for place, round in enumerate(found["rounds"]):
                with np.load(folder / f"round{round:05d}.npz") as file:
                    np.testing.assert_array_equal(stack[place], file[name])
                    assert found["clients"] == file["clients"].tolist()
        assert sorted(found["order"]) == [0, 1, 2, 3]
    history = pd.read_parquet(finished / "history.parquet")
    notes = history[(history["phase"] == "train") & (history["metric"] == "mean_self_weight")]
    means = notes.groupby("round")["value"].mean()
    assert shown.data["notes"]["mean_self_weight"]["feddwa"] == {"round": means.index.tolist(), "mean": means.tolist()}
    summary = json.loads((finished / "summary.json").read_text())["rows"]
    assert shown.data["summary"] == summary
    assert [row[0][0] for row in shown.rows[1:]] == list(labels)
    for line, row in zip(shown.rows[1:], summary, strict=True):
        values = [None if value == "" else float(str(value)) for _, value in line[1:]]
        sent = sum(row[f"bytes_{way}"] for way in WAYS)
        keys = ("accuracy_mean", "r_acc", "ptr", "gain_mean", "worst", "worst_decile")
        assert values == [*(row[key] for key in keys), sent, row["seconds"]]


def test_nothing_is_fetched(finished: Path) -> None:
    html = (finished / "report.html").read_text(encoding="utf-8")
    found = Page(html)
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert "default-src 'none'" in html
    library = re.search(r'id="library">([^<]+)<', html)
    assert library is not None
    assert b"Plotly" in gzip.decompress(base64.b64decode(library[1]))


def test_names_are_text(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    run = open_run(written(tmp_path / "run", [evil, "b"], label=evil))
    html = page(replace(run, portrait={"names": [evil, "b"], "labels": [evil, "no"]}))
    assert evil not in html
    assert "<img" not in html
    found = Page(html)
    assert found.data["clients"]["names"][0] == evil
    assert found.data["clients"]["labels"] == [evil, "no"]
    assert found.data["labels"][1] == evil


def test_an_unfinished_run_has_a_page(copy: Path) -> None:
    rows = pd.read_parquet(copy / "clients.parquet")
    history = pd.read_parquet(copy / "history.parquet")
    keep = {
        "clients": rows[(rows["algorithm"] == "local") | ((rows["algorithm"] == "fedavg") & (rows["round"] < 3))],
        "history": history[
            (history["algorithm"] == "local") | ((history["algorithm"] == "fedavg") & (history["round"] < 3))
        ],
    }
    for name, table in keep.items():
        table.to_parquet(copy / f"{name}.parquet", index=False)
    (copy / "summary.json").unlink()
    found = Page(page(open_run(copy)))
    assert "This run is not whole" in found.text
    assert "fedavg, seed 1: 2 of 4 rounds." in found.text
    assert "fedora (released), seed 0: no results yet." in found.text
    assert found.data["labels"] == ["local", "fedavg"]
    assert found.data["gains"]["fedavg"]["gain"]


@pytest.mark.parametrize(
    "name", ["history.parquet", "clients.parquet", "timings.parquet", "failures.csv", "about.json", "federation.json"]
)
@pytest.mark.parametrize("content", [None, b"", b"\x00\xff{"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(copy: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content)
    run = open_run(copy)
    found = Page(page(run))
    if name != "failures.csv" or content:  # no failures are no fault
        assert any(name in sentence for sentence in run.missing), run.missing
        assert name in found.text
    assert bool(found.data["labels"]) == (name != "clients.parquet")


def test_damaged_relations_are_left_out(copy: Path) -> None:
    files = sorted((copy / "relations").glob("fedora*/seed0/*.npz"))
    files[0].write_bytes(b"no zip")
    links = Page(page(open_run(copy))).data["links"]["fedora (released)"]
    assert len(links["rounds"]) == len(files) - 1


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="There is no run directory"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(CoterieError, match="is not a run directory"):
        open_run(tmp_path)


def test_the_page_replaces_no_results(copy: Path, tmp_path: Path) -> None:
    def report(*words: str | Path) -> Result:
        return CliRunner().invoke(app, ["report", str(copy), *map(str, words)])

    (copy / "adapted-1" / "fedavg").mkdir(parents=True)
    relations = next((copy / "relations").rglob("*.npz")).relative_to(copy)
    assert "the page is a file that ends in .html" in report("-o", tmp_path / "page.pdf").stderr
    for name in (
        "config.yaml",
        "summary.json",
        "sites.json",
        relations,
        "adapted-1/newcomers.yaml",
        "adapted-1/fedavg/seed0.csv",
    ):
        file = copy / name
        before = file.read_bytes() if file.exists() else None
        done = report("-o", file)
        assert done.exit_code == 2, (name, done.output)
        said = f"{file} belongs to the results in {copy}; choose another --output."
        assert done.stderr.strip() == f"error: {said}"
        assert (file.read_bytes() if file.exists() else None) == before
    assert report().exit_code == 0
    for file in (copy / "report.html", copy / "page.html", tmp_path / "page.html"):
        for _ in range(2):
            assert report("-o", file).exit_code == 0


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "empty")
    found = Page(page(open_run(run.path)))
    assert "There are no results yet." in found.text
    assert "clients.parquet is missing" in found.text


def test_a_thousand_clients_are_joined(tmp_path: Path) -> None:
    names = [f"c{k}" for k in range(1000)]
    path = written(tmp_path / "run", names, rounds=40)
    matrix = np.random.default_rng(0).random((1000, 1000), dtype=np.float32)
    matrix[:10, :10] = np.nan
    save_relations(RunDirectory(path), "fedavg", "", 0, 40, names, {"w": matrix})
    html = page(open_run(path))
    assert len(html) < 8e6
    data = Page(html).data
    links = data["links"]["fedavg"]
    assert links["joined"] == 10
    stack = unpacked(links["matrices"]["w"])
    assert stack.shape == (1, 100, 100)
    assert np.isnan(stack[0, 0, 0])
    assert stack[0, 3, 5] == pytest.approx(matrix[30:40, 50:60].mean(), rel=1e-6)
    rounds = data["own_curves"]["fedavg"]["rounds"]
    assert (rounds[0], rounds[-1]) == (0, 40)
    assert unpacked(data["own_curves"]["fedavg"]["values"]).shape == (len(rounds), 1000)


def test_packing_keeps_every_bit() -> None:
    for values in (np.array([[0.1, np.nan], [-np.inf, 2.0]]), np.arange(6, dtype=np.float32).reshape(1, 2, 3)):
        again = unpacked(json.loads(json.dumps(packed(values))))
        np.testing.assert_array_equal(again, values)
        assert again.dtype == values.dtype


def test_a_finished_run_reads_the_same_elsewhere(finished: Path, tmp_path: Path, shown: Page) -> None:
    moved = Path(shutil.copytree(finished, tmp_path / "moved"))
    assert Page(page(open_run(moved))).data == shown.data


def written(path: Path, names: list[str], *, rounds: int = 2, label: str = "fedavg") -> Path:
    """A run of LOCAL and FedAvg with random results, without training."""
    run, history, random = RunDirectory.create(path, "written"), History(), np.random.default_rng(0)
    labels: dict[Any, str] = {("local", ""): "local", ("fedavg", ""): label}
    About("written", "classification", "last", rounds, (0,), (), labels, ("local", "")).write(run)
    for algorithm, variant in labels:
        for round in range(rounds + 1):
            for split in ("validation", "test"):
                values = random.random(len(names))
                history.add_clients(
                    algorithm, variant, 0, round, split, names, np.full(len(names), 9), "accuracy", values
                )
    history.write(run)
    return path
