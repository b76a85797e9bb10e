"""One site whose answers have another form than they should is left out, and decides for nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from posts import LocalPost, remote
from test_shares import near

from coterie.engines import Settings
from coterie.engines.forms import IN_DOUBT, Forms
from coterie.engines.remote import RemoteEngine
from coterie.engines.sites import stack_for
from coterie.engines.wire import Packet
from coterie.models import Models, ModelSpec
from toys import MLP, NORMED, classified, saved

TWO = classified((7, 4))
FOUR = classified((7, 4, 9, 5))


def disturbed(
    name: str, folder: Path, site: str, values: Callable[[dict[str, Any], list[Any]], None], **settings: Any
) -> RemoteEngine:
    """A federation in which the answers of one site are something else whenever it has any."""
    ours = remote(settings.pop("federation", TWO), name, settings.pop("model", MLP), folder=folder, **settings)

    def change(round: int, client: str, packet: Packet) -> Packet:
        tree, arrays = packet.tree(), list(packet.arrays)
        if client == site and "answer" in tree:
            values(tree["answer"]["values"], arrays)
        return Packet(json.dumps(tree), arrays)

    assert isinstance(ours.post, LocalPost)
    ours.post.change = change
    return ours


def without_a_tensor(values: dict[str, Any], arrays: list[Any]) -> None:
    (models,) = (value["__models__"] for value in values.values())
    del models[sorted(models)[0]]


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_a_part_of_a_model_that_comes_first_is_no_pattern_for_the_others(name: str, tmp_path: Path) -> None:
    ours = disturbed(name, tmp_path, "client-1", without_a_tensor)  # of two it answers first
    for _ in range(3):
        report = ours.advance()
        assert report.answered == ("client-0",)
        (failure,) = report.failures
        assert failure.client == "client-1"
        assert "and that of the others models () of" in failure.reason


def test_a_part_of_a_model_that_comes_alone_is_no_pattern_for_those_who_come_later(tmp_path: Path) -> None:
    ours = disturbed("fedavg", tmp_path, "client-1", without_a_tensor)
    assert isinstance(ours.post, LocalPost)
    ours.post.away = {"client-0"}
    before = saved(ours)["server"]
    report = ours.advance()
    assert report.answered == ()
    assert report.failures[0].reason == "its answer w holds models without '1.bias', unexpectedly"
    near(saved(ours)["server"], before)
    ours.post.away = set()
    assert ours.advance().answered == ("client-0",)


def test_a_statistic_in_whole_numbers_is_refused(tmp_path: Path) -> None:
    """Else the mean over all would be one, too, since the first client's type is that of the mean."""

    def rounded(values: dict[str, Any], arrays: list[Any]) -> None:
        number = values["w"]["__models__"]["2.running_mean"]["__tensor__"]
        arrays[number] = arrays[number].astype(np.int64)

    ours = disturbed("fedavg", tmp_path, "client-0", rounded, federation=FOUR, model=NORMED)
    report = ours.advance()
    assert report.answered == FOUR.names[1:]
    assert report.failures[0].reason == "its answer w has 2.running_mean as torch.int64, not torch.float64"


@pytest.mark.parametrize("choice", [7, -1, 0.0])
@pytest.mark.parametrize(("name", "round"), [("ifca", 1), ("ifca", 2), ("hypcluster", 2)])
def test_a_choice_among_models_that_is_none_leaves_its_client_out(
    name: str, round: int, choice: float, tmp_path: Path
) -> None:
    """In IFCA's first round the clients are asked for their choice alone, too."""

    def chosen(values: dict[str, Any], arrays: list[Any]) -> None:
        if "choice" in values and len(reports) + 1 >= round:
            arrays[values["choice"]["__tensor__"]] = np.array([choice])

    options = {"warm_up": 1} if name == "hypcluster" else {}
    ours = disturbed(name, tmp_path, "client-3", chosen, federation=FOUR, options=options)
    reports: list[Any] = []
    while not ours.finished:
        reports.append(ours.advance())
    for report in reports[round - 1 :]:
        assert report.answered == FOUR.names[:3]
        assert {failure.reason for failure in report.failures} == {"its answer choice is no whole number from 0 to 1"}


def of_tensors(**shapes: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return {name: torch.zeros(1, *shape) for name, shape in shapes.items()}, {}


def forms(model: ModelSpec = MLP) -> tuple[Forms, Models]:
    models = stack_for(TWO, model, Settings(rounds=1)).initial(0)
    return Forms(models, {}), models


def test_of_two_forms_of_tensors_neither_is_right_until_a_third_site_answers() -> None:
    ours, _ = forms()
    assert ours.problems("ask", {}, {1: of_tensors(a=(3,)), 0: of_tensors(a=(2,))}) == {0: IN_DOUBT, 1: IN_DOUBT}
    third = ours.problems("ask", {}, {2: of_tensors(a=(2,))})
    assert third == {}
    again = ours.problems("ask", {}, {1: of_tensors(a=(3,)), 0: of_tensors(a=(2,))})
    assert again == {
        1: "its answer a is a tensor (3,) of torch.float32, and that of the others a tensor (2,) of torch.float32"
    }


def test_a_site_that_was_wrong_alone_is_outvoted_by_those_who_come_later() -> None:
    ours, _ = forms()
    assert ours.problems("ask", {}, {1: of_tensors(a=(3,))}) == {}
    assert ours.problems("ask", {}, {0: of_tensors(a=(2,)), 2: of_tensors(a=(2,))}) == {}
    assert ours.problems("ask", {}, {1: of_tensors(a=(3,))}).keys() == {1}


def test_a_part_that_was_not_sent_is_right_where_the_sites_agree_on_it() -> None:
    ours, models = forms()
    answers = {client: ({"head": models["head"]}, dict[str, torch.Tensor]()) for client in (0, 1)}
    assert ours.problems("ask", {"w": models}, answers) == {}
