"""The programs that measure run, train what they say, and are described."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.models import build_model

ROOT = Path(__file__).resolve().parents[2]
MLP = 784 * 128 + 128 * 128 + 128 * 10
CONVOLUTIONS = 32 * 28 * 28 * 75 + 64 * 10 * 10 * 800
FIRST = {"mlp": 784 * 128, "pgfed-cnn": 32 * 28 * 28 * 75}


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout
    )


@pytest.mark.parametrize("name", ["mlp", "pgfed-cnn", "feddwa-cnn"])
def test_peers_train_the_networks_of_coterie(name: str) -> None:
    from benchmarks.peers.networks import CLASSES, SHAPES, network

    ours, theirs = build_model(name, SHAPES[name], CLASSES), network(name)
    assert [repr(layer) for layer in ours] == [repr(layer) for layer in theirs]


@pytest.mark.parametrize(("name", "products"), [("mlp", MLP), ("pgfed-cnn", CONVOLUTIONS + 1600 * 512 + 512 * 10)])
def test_the_floor_counts_three_passes_but_for_the_first_layers_inputs(name: str, products: int) -> None:
    from benchmarks.peers.networks import training_flops

    assert training_flops(name) == 2 * (3 * products - FIRST[name])


def test_a_task_comes_back_as_written(tmp_path: Path) -> None:
    from benchmarks.peers.work import WORKS, read, write

    write(WORKS["mlp-10"], tmp_path / "task.npz")
    task = read(tmp_path / "task.npz")
    assert task.work == WORKS["mlp-10"]
    assert task.inputs.shape == (20, 120, 1, 28, 28)
    assert task.loss(task.weights) == pytest.approx(2.3, abs=0.1)  # ten classes, not trained


def test_every_program_is_described() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    programs = [path.name for path in (ROOT / "benchmarks").glob("*.py") if path.name != "__init__.py"]
    assert [name for name in [*programs, "benchmarks.peers"] if name not in text] == []


@pytest.mark.full
def test_a_round_beside_the_loops(tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    done = run(
        "-m", "benchmarks.peers", "--only", "mlp-10", "--contestants", "coterie,loop,lean,pfllib,fluke",
        "--pfllib", str(tmp_path), "--into", str(tmp_path), "--clients", "3", "--examples", "40", "--repeats", "2",
        "--json", str(file),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    scores = json.loads(file.read_text())["works"]["mlp-10"]["scores"]
    assert "| coterie |" in run("-m", "benchmarks.peers", "table", "--json", str(file)).stdout
    assert scores["pfllib"]["failure"].endswith("it has no system/flcore/servers/serveravg.py")
    assert scores["fluke"]["failure"].startswith("not installed")
    for name in ("coterie", "loop", "lean"):
        assert scores[name]["failure"] == ""
        assert len(scores[name]["seconds"]) == 2
        assert scores[name]["loss"] == pytest.approx(scores["loop"]["loss"], abs=0.02)
    assert scores["floor"]["seconds"][0] < scores["lean"]["seconds"][0]


@pytest.mark.full
def test_micro_benchmarks_run_and_notice_what_is_slower(tmp_path: Path) -> None:
    baseline = tmp_path / "micro.json"
    arguments = ("benchmarks/micro.py", "--tiny", "--repeats", "1", "--baseline", str(baseline))
    saved = run(*arguments, "--save")
    assert saved.returncode == 0, saved.stderr
    stored = json.loads(baseline.read_text())
    assert len(stored) == 8
    baseline.write_text(json.dumps(dict.fromkeys(stored, 1e-6)))
    assert run(*arguments).returncode == 1
    baseline.write_text(json.dumps(dict.fromkeys(stored, 1e6)))
    assert run(*arguments).returncode == 0
