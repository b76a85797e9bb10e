"""Personalised models on disk."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from coterie.errors import CoterieError
from coterie.runs import RunDirectory, load_model, save_models

NAMES = ["client-0", "client-1"]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "x")


def test_each_client_gets_its_own_row(run: RunDirectory) -> None:
    flat = torch.arange(20, dtype=torch.float64).reshape(2, 10)
    rows = {
        "0.weight": flat[:, :6].reshape(2, 2, 3).transpose(1, 2),  # not contiguous
        "0.bias": flat[:, 6:],  # a view that shares its storage
        "steps": torch.tensor([3, 4]),
    }
    folder = save_models(run, "fedora", "released", 2, NAMES, rows, round=40)
    assert folder == run.path / "models" / "fedora-released" / "seed2"
    assert sorted(path.name for path in folder.iterdir()) == ["client-0.safetensors", "client-1.safetensors"]
    for i, name in enumerate(NAMES):
        model = load_model(run, "fedora", "released", 2, name)
        assert model.keys() == rows.keys()
        for key, tensor in rows.items():
            assert model[key].dtype == tensor.dtype
            assert torch.equal(model[key], tensor[i])


def test_a_file_holds_one_model_and_says_whose_it_is(run: RunDirectory) -> None:
    folder = save_models(run, "local", None, 0, NAMES, {"w": torch.zeros(2, 1000)}, round=3)
    file = folder / "client-1.safetensors"
    assert file.stat().st_size < 4_400
    with safe_open(file, framework="pt") as content:
        assert json.loads(content.metadata()["coterie"]) == {
            "client": "client-1",
            "algorithm": "local",
            "variant": "",
            "seed": "0",
            "round": "3",
        }


def test_equal_models_are_equal_files(run: RunDirectory) -> None:
    files = set()
    for _ in range(8):
        folder = save_models(run, "local", None, 0, NAMES, {"w": torch.ones(2, 3), "b": torch.ones(2)}, round=1)
        files.add((folder / "client-1.safetensors").read_bytes())
    assert len(files) == 1


@pytest.mark.parametrize("name", ["../../evil", "St. Mary / ward 3", "Zoë", "..", "a%2Fb"])
def test_any_client_name_is_a_file_in_the_folder(run: RunDirectory, name: str) -> None:
    folder = save_models(run, "local", None, 0, [name], {"w": torch.ones(1, 2)})
    assert len(list(folder.iterdir())) == 1
    assert torch.equal(load_model(run, "local", None, 0, name)["w"], torch.ones(2))


def test_models_with_gradients_are_detached(run: RunDirectory) -> None:
    save_models(run, "local", None, 0, NAMES, {"w": torch.ones(2, 3, requires_grad=True)})
    assert not load_model(run, "local", None, 0, "client-0")["w"].requires_grad


def test_rows_must_match_the_clients(run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="3 rows for 2 clients"):
        save_models(run, "local", None, 0, NAMES, {"w": torch.ones(3, 2)})


def test_a_missing_model_names_those_there_are(run: RunDirectory) -> None:
    with pytest.raises(CoterieError, match="has saved none there"):
        load_model(run, "local", None, 0, "client-0")
    save_models(run, "local", None, 0, NAMES, {"w": torch.ones(2, 3)})
    with pytest.raises(CoterieError, match=r"There is no model .*there are models of client-0, client-1"):
        load_model(run, "local", None, 0, "client-7")


def test_a_damaged_model_is_named(run: RunDirectory) -> None:
    folder = save_models(run, "local", None, 0, NAMES, {"w": torch.ones(2, 3)})
    file = folder / "client-0.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CoterieError, match=r"client-0\.safetensors is damaged"):
        load_model(run, "local", None, 0, "client-0")


def test_a_place_that_cannot_be_written_is_named(run: RunDirectory) -> None:
    run.models.write_text("in the way")
    with pytest.raises(CoterieError, match="Cannot make the folder"):
        save_models(run, "local", None, 0, NAMES, {"w": torch.ones(2, 3)})
