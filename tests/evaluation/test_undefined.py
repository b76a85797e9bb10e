"""From files in which one hospital has nothing but sick patients to its summary, page and comparison."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.errors import CoterieError
from coterie.reports import compare, open_run
from coterie.reports.page import write_page
from coterie.reports.series import gains
from coterie.runs import History, RunDirectory, result_table
from coterie.runs.table import caption

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
REASON = "only class 1 in its test data"
NOTE = f"auroc, balanced_accuracy: without switzerland ({REASON})."


def experiment(folder: Path, sick_in: tuple[str, ...] = ("switzerland",), **more: Any) -> dict[str, Any]:
    """Four hospitals with 40 patients each, in the files of the published set; nobody is well in some of them."""
    draw = np.random.default_rng(0)
    place = folder / "data" / "heart-disease"
    place.mkdir(parents=True, exist_ok=True)
    for hospital in HOSPITALS:
        ages = draw.integers(30, 75, 40)
        sick = np.ones(40) if hospital in sick_in else ages + draw.normal(0, 10, 40) > 52
        lines = [f"{age},1,{1 + age % 4}{',?' * 10},{int(ill)}" for age, ill in zip(ages, sick, strict=True)]
        (place / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return {
        "federation": {"source": "heart-disease", "partition": {"rule": "natural"}},
        "model": "linear",
        "training": {"lr": 0.1},
        "algorithms": ["local", "fedavg", "fedem"],
        "rounds": 3,
        "evaluate_every": 1,
        "seeds": [0, 1],
        "metric": "auroc",
        "save_samples": False,
        "output": str(folder / "run"),
        **more,
    }


def ran(folder: Path, **more: Any) -> Any:
    return coterie.run(experiment(folder, **more), data_dir=folder / "data")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hospitals")
    ran(folder)
    return folder / "run"


def test_the_summary_says_who_is_left_out(finished: Path) -> None:
    text = (finished / "summary.json").read_text()
    assert "NaN" not in text
    rows = json.loads(text)["rows"]
    for row in rows:
        assert row["metric"] == "auroc"
        assert row["undefined"] == {"auroc": {"switzerland": REASON}, "balanced_accuracy": {"switzerland": REASON}}
        assert 0 <= row["auroc_mean"] <= 1
        assert {"accuracy_mean", "auprc_std", "f1_mean", "brier_mean", "calibration_mean"} <= row.keys()
        assert (row["clients"], row["clients_without_result"]) == (4, 2)  # one with each of two seeds
    local, fedavg = rows[:2]
    assert (local["r_acc"], local["ptr"], local["gain_mean"]) == (0, 1, 0)
    assert fedavg["compared"] == 6


def test_the_reported_round_is_that_of_the_best_auroc(finished: Path) -> None:
    clients = pd.read_parquet(finished / "clients.parquet")
    rows = clients[(clients["metric"] == "auroc") & (clients["algorithm"] == "fedavg") & (clients["seed"] == 0)]
    by_round = rows[rows["split"] == "validation"].groupby("round")["value"].mean()
    run = open_run(finished)
    found = run.results["fedavg", "", 0]
    assert found.round == by_round.idxmax()
    test = rows[(rows["split"] == "test") & (rows["round"] == found.round)].set_index("client")["value"]
    pd.testing.assert_series_equal(found.values, test, check_names=False, check_index_type=False)
    row = json.loads((finished / "summary.json").read_text())["rows"][1]
    means = [run.results["fedavg", "", seed].values.mean() for seed in (0, 1)]
    assert row["auroc_mean"] == pytest.approx(np.mean(means))


def test_no_table_holds_a_number_for_it(finished: Path) -> None:
    clients = pd.read_parquet(finished / "clients.parquet")
    swiss = clients[(clients["client"] == "switzerland") & (clients["phase"] == "evaluate") & (clients["split"] != "")]
    empty = swiss["value"].isna()
    assert set(swiss[empty]["metric"]) == {"auroc", "balanced_accuracy"}
    assert set(swiss[~empty]["metric"]) == {"loss", "accuracy", "auprc", "f1", "brier", "calibration"}
    history = pd.read_parquet(finished / "history.parquet")
    assert history["value"].notna().all()  # means are over those who have it
    assert "nan" not in (finished / "history.csv").read_text().lower()
    told = pd.read_csv(finished / "undefined.csv", keep_default_na=False)
    assert set(told["reason"]) == {REASON, REASON.replace("test", "validation")}
    directory = RunDirectory.open(finished)
    again = History.read(directory).frames()
    pd.testing.assert_frame_equal(again.undefined, told, check_dtype=False)


def test_the_saved_model_gives_the_reported_auroc(finished: Path) -> None:
    from safetensors.torch import load_file

    from coterie.config import parse_config
    from coterie.federation import build_federation

    config = parse_config(experiment(finished.parent))
    federation = build_federation(config.federation, seed=0, data_dir=finished.parent / "data")
    x, y = federation.test.client(0)
    found = open_run(finished).results["local", "", 0].values
    model = load_file(finished / "models" / "local" / "seed0" / f"{federation.names[0]}.safetensors")
    weight, bias = (next(t for n, t in model.items() if n.endswith(end)) for end in ("weight", "bias"))
    z = x.double() @ weight.double().T + bias.double()
    assert found[federation.names[0]] == pytest.approx(roc_auc_score(y, z[:, 1] - z[:, 0]))


def test_a_reader_is_told(finished: Path) -> None:
    run = open_run(finished)
    assert NOTE in caption(run.rows)
    assert "R-AUROC" in [str(column.header) for column in result_table(run.rows).columns]
    write_page(run)
    assert NOTE in (finished / "report.html").read_text()
    assert gains(run)["value"].isna().sum() == 3  # one a system
    done = CliRunner().invoke(app, ["compare", str(finished), "--metric", "f1"])
    assert done.exit_code == 0, done.output
    assert "Against" in done.output
    assert NOTE.split(":")[0] in done.output


def test_what_can_be_compared(finished: Path, tmp_path: Path) -> None:
    own = compare([finished])
    assert own.measure.name == "auroc"
    assert own.values.isna().sum().tolist() == [2, 2, 2]
    assert compare([finished], metric="f1").values.notna().all().all()
    other = Path(shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("models", "servers")))
    about = json.loads((other / "about.json").read_text())
    (other / "about.json").write_text(json.dumps({**about, "chosen": None}))
    with pytest.raises(
        CoterieError, match=r"in one metric can be compared, not .*run \(auroc\) and .*run \(accuracy\)"
    ):
        compare([finished, other])


def test_newcomers_are_reported_in_it_too(tmp_path: Path) -> None:
    newcomers = {"clients": ["hungarian", "switzerland"], "labelled": True, "epochs": 1}
    result = ran(tmp_path, algorithms=["fedavg"], seeds=[0], rounds=1, newcomers=newcomers)
    row = next(row for row in result.newcomers if row["algorithm"] == "fedavg")
    assert (row["metric"], row["newcomers"], row["failed"], row["undefined"]) == ("auroc", 2, 0, 1)
    assert all(0 <= value <= 1 for value in row["curve"])


def test_where_nobody_has_it(tmp_path: Path) -> None:
    with pytest.raises(
        CoterieError, match=r"auroc is undefined for every client \(cleveland: only class 1 in its test"
    ):
        ran(tmp_path, sick_in=HOSPITALS)
    assert not (tmp_path / "run").exists()


def test_mistakes_in_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="metric: There is no metric aurok: did you mean auroc"):
        ran(tmp_path, metric="aurok")
    with pytest.raises(CoterieError, match="There is no rmse for a binary classification"):
        ran(tmp_path, metrics=["rmse"])
