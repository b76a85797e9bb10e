"""What figures show is what the tables say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hand_made import made
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from coterie.errors import CoterieError
from coterie.evaluation.tables import Task
from coterie.reports import OpenedRun, compare, open_run
from coterie.reports.figures.choice import Choice
from coterie.reports.figures.graph import draw_graphs
from coterie.reports.figures.heatmap import draw_heatmaps
from coterie.reports.figures.kinds import KINDS, draw
from coterie.reports.figures.ranks import draw_ranks
from coterie.reports.figures.style import ALONE, COLOURS, HARMED, looks, short_names
from coterie.reports.figures.weights import draw_weights
from coterie.reports.series import curves, gains
from written_runs import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenedRun:
    return write_run(tmp_path_factory.mktemp("figures") / "run")


def reported_in(run: OpenedRun, metric: str) -> OpenedRun:
    """The run as if its numbers were of another metric."""
    task: Task = "classification" if metric == "accuracy" else "regression"
    return replace(run, about=replace(run.about, task=task, chosen=metric))


def panels(figure: Figure) -> dict[str, Axes]:
    """Panels by the first line of their title."""
    return {axes.get_title().split("\n")[0]: axes for axes in figure.axes}


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text")))


def test_curves_are_the_means_by_round_with_a_band_of_one_deviation(run: OpenedRun) -> None:
    table = curves(run)
    (axes,) = draw("curves", [run], Choice()).axes
    for label, own in table.groupby("label"):
        (line,) = [line for line in axes.lines if line.get_label() == label]
        np.testing.assert_array_equal(line.get_xdata(), own["round"])
        np.testing.assert_array_equal(line.get_ydata(), own["mean"])
    assert len(axes.collections) == 3  # a band each
    band = axes.collections[1].get_datalim(axes.transData)
    own = table[table["label"] == "FedAvg"]
    assert band.y1 == pytest.approx((own["mean"] + own["std"]).max())
    assert band.y0 == pytest.approx((own["mean"] - own["std"]).min())
    assert axes.get_ylabel() == "test accuracy"


def test_results_in_the_reported_round_alone_are_no_curve(run: OpenedRun) -> None:
    """As a guard has them, in a round of each seed's own: a line would join different seeds."""
    history = run.tables.history
    first, second, *_ = sorted(history["round"].unique())[1:]
    own = (history["algorithm"] == "fedavg") & (history["phase"] == "evaluate")
    reported = history["round"] == history["seed"].map({0: first, 1: second})
    seldom = replace(run, tables=replace(run.tables, history=history[~own | reported]))
    assert set(curves(run)["label"]) - set(curves(seldom)["label"]) == {"FedAvg"}
    assert set(history.loc[own, "seed"]) == {0, 1}


def test_bytes_are_of_the_seeds_that_have_come_so_far(run: OpenedRun) -> None:
    history = run.tables.history
    own = history["algorithm"] == "fedavg"
    rounds = sorted(history.loc[own & (history["phase"] == "evaluate"), "round"].unique())
    stopped = own & (history["seed"] == 1) & (history["round"] > rounds[-2])
    lagging = replace(run, tables=replace(run.tables, history=history[~stopped]))
    alone = replace(run, tables=replace(run.tables, history=history[history["seed"] == 0]))
    last, wanted = (curves(each).query("label == 'FedAvg'").iloc[-1] for each in (lagging, alone))
    assert (last["round"], last["seeds"]) == (wanted["round"], 1)
    assert last["bytes"] == wanted["bytes"] > 0


def test_a_single_seed_and_another_split(run: OpenedRun) -> None:
    (axes,) = draw("curves", [run], Choice(seed=1, split="validation", systems=("fedora",))).axes
    (line,) = axes.lines
    history = run.tables.history
    own = history[(history["seed"] == 1) & (history["algorithm"] == "fedora") & (history["split"] == "validation")]
    np.testing.assert_allclose(line.get_ydata(), own["value"])
    assert not axes.collections  # one seed deviates from nothing


def test_curves_over_bytes_count_what_has_travelled_and_local_is_level(run: OpenedRun) -> None:
    (axes,) = draw("curves", [run], Choice(over="bytes")).axes
    by_label = {str(line.get_label()): line for line in axes.lines}
    np.testing.assert_allclose(by_label["FedAvg"].get_xdata(), [1, 2, 3])
    assert "(MB)" in axes.get_xlabel()
    assert set(np.asarray(by_label["LOCAL"].get_ydata())) == {0.5}


def test_local_is_grey_and_dashed_everywhere(run: OpenedRun) -> None:
    (axes,) = draw("curves", [run], Choice()).axes
    (line,) = [line for line in axes.lines if line.get_label() == "LOCAL"]
    assert to_hex(line.get_color()).upper() == ALONE
    assert line.get_linestyle() == "--"


def test_looks_differ_for_more_systems_than_there_are_colours() -> None:
    found = looks([f"system {i}" for i in range(36)])
    assert len({(look.colour, str(look.line), look.marker) for look in found.values()}) == 36


def test_gain_bars_are_the_gains_and_those_that_lose_are_hatched(run: OpenedRun) -> None:
    table = gains(run)
    figure = draw("gain", [run], Choice())
    assert set(panels(figure)) == {"FedAvg", "FEDORA"}
    for label, axes in panels(figure).items():
        own = table[table["label"] == label].sort_values("gain", ascending=False)
        bars = sorted(axes.patches, key=lambda bar: bar.get_x())
        np.testing.assert_allclose([bar.get_height() for bar in bars], own["gain"])
        assert [bool(bar.get_hatch()) for bar in bars] == [gain < 0 for gain in own["gain"]]
        assert {to_hex(bar.get_facecolor()).upper() for bar in bars if bar.get_hatch()} <= {HARMED}
        assert [tick.get_text() for tick in axes.get_xticklabels()] == short_names(own["client"].tolist())
        assert f"{(own['gain'] < 0).sum()}/5 harmed" in axes.texts[0].get_text()
    assert (table["gain"] < 0).any()


@pytest.mark.parametrize("kind", ["gain", "scatter"])
@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("accuracy", "gain over LOCAL (points)"),
        ("mae", "error saved against LOCAL"),
        ("r2", "gain in R² over LOCAL"),
        ("r2:0", "gain in R² (0) over LOCAL"),
    ],
)
def test_gains_are_called_what_they_are_in_the_metric(run: OpenedRun, kind: str, metric: str, title: str) -> None:
    assert draw(kind, [reported_in(run, metric)], Choice(seed=0)).axes[0].get_ylabel() == title


def test_gains_in_the_order_of_a_fact(run: OpenedRun) -> None:
    axes = panels(draw("gain", [run], Choice(order="group", systems=("FEDORA",))))["FEDORA"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "2", "4", "1", "3"]


def test_many_clients_are_an_area_and_each_is_in_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", k=1000, rounds=(6,), seeds=(0,), related=False)
    table = gains(run)
    axes = panels(draw("gain", [run], Choice()))["FedAvg"]
    shown = sum(np.asarray(steps.get_data().values) for steps in axes.patches)
    np.testing.assert_allclose(shown, table[table["label"] == "FedAvg"]["gain"].sort_values(ascending=False))
    (values,) = draw("accuracy", [run], Choice()).axes
    assert "1000 clients" in values.get_xlabel()
    assert len(values.lines[1].get_ydata()) == 1000
    (cells, _) = draw("data", [run], Choice()).axes
    assert cells.images[0].get_array().shape == (3, 1000)
    assert len(cells.get_xticks()) < 30


def test_accuracy_of_a_few_clients_is_bars_by_system(run: OpenedRun) -> None:
    table = gains(run)
    (axes,) = draw("accuracy", [run], Choice(width=6.9)).axes
    heights = {container.get_label(): [bar.get_height() for bar in container] for container in axes.containers}
    assert set(heights) == {"LOCAL", "FedAvg", "FEDORA"}
    for label, found in heights.items():
        np.testing.assert_allclose(found, table[table["label"] == label]["value"])


@pytest.mark.parametrize(("metric", "worst_is_first"), [("accuracy", np.min), ("mae", np.max), ("r2", np.min)])
def test_values_of_many_clients_go_from_worst_to_best(
    tmp_path: Path, metric: str, worst_is_first: Callable[[object], float]
) -> None:
    run = reported_in(write_run(tmp_path / "run", k=101, rounds=(6,), seeds=(0,), related=False), metric)
    (axes,) = draw("accuracy", [run], Choice(systems=("FedAvg",))).axes
    assert axes.get_xlabel().endswith("from worst to best")
    (line,) = axes.lines
    assert len(set(np.asarray(line.get_ydata()))) > 50
    assert line.get_ydata()[0] == worst_is_first(line.get_ydata())


def test_heat_maps_show_the_shares_that_are_stored_and_own_parts_are_beyond_the_scale(run: OpenedRun) -> None:
    with np.load(run.directory.relations / "fedora-released/seed0/round00004.npz") as stored:
        propagation, similarity = stored["propagation"], stored["similarity"]
    figure = draw("relations", [run], Choice(rounds=(2, 4)))
    assert [axes.get_title() for axes in figure.axes[:2]] == ["round 2", "round 4"]
    image = figure.axes[1].images[0]
    np.testing.assert_array_equal(image.get_array(), propagation.astype(float))
    first = figure.axes[0].images[0]
    others = [np.asarray(panel.get_array())[~np.eye(5, dtype=bool)].max() for panel in (first, image)]
    assert image.norm.vmax == first.norm.vmax == max(others)
    figure = draw("relations", [run], Choice(rounds=(4,), matrix="similarity", order="group"))
    order = [0, 2, 4, 1, 3]
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), similarity.astype(float)[np.ix_(order, order)])


def test_own_parts_that_are_not_far_more_are_on_the_scale() -> None:
    frame = pd.DataFrame([[0.6, 0.4], [0.5, 0.5]], index=["a", "b"], columns=["a", "b"])
    assert draw_heatmaps([("x", frame)], 1, 3.3).axes[0].images[0].norm.vmax == 0.6


def test_unknown_relations_are_grey() -> None:
    frame = pd.DataFrame([[0.5, np.nan], [np.nan, 0.5]], index=["a", "b"], columns=["a", "b"])
    image = draw_heatmaps([("x", frame)], 1, 3.3).axes[0].images[0]
    assert to_hex(image.to_rgba(image.get_array())[0, 1]).upper() == "#E6E6E6"


def test_the_strongest_relations_are_arrows_from_the_giver_to_the_taker() -> None:
    names = ["a", "b", "c"]
    frame = pd.DataFrame([[0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.4, 0.001, 0.6]], index=names, columns=names)
    (axes,) = draw_graphs([("x", frame)], 1, 3.3).axes
    places = dict(zip(names, map(tuple, axes.collections[0].get_offsets()), strict=True))
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    found = {(arrow._posA_posB[0], arrow._posA_posB[1]): arrow.get_linewidth() for arrow in arrows}  # type: ignore[attr-defined]
    assert set(found) == {(places["b"], places["a"]), (places["a"], places["c"])}
    assert found[places["a"], places["c"]] > found[places["b"], places["a"]]


def test_clients_that_share_much_are_neighbours_on_the_circle() -> None:
    names = [f"c{k}" for k in range(6)]
    taken = np.eye(6)
    for one, other in ((0, 3), (1, 4), (2, 5)):
        taken[one, other] = taken[other, one] = 0.9
    (axes,) = draw_graphs([("x", pd.DataFrame(taken, index=names, columns=names))], 1, 3.3).axes
    places = np.asarray(axes.collections[0].get_offsets())
    np.testing.assert_allclose(np.linalg.norm(places - 0.5, axis=1), 0.5)
    far = np.linalg.norm(places[:, None] - places[None], axis=2)
    for one, other in ((0, 3), (1, 4), (2, 5)):
        assert far[one, other] == pytest.approx(np.sort(far[one])[1])  # nobody is nearer


def test_weights_of_a_client_by_round(run: OpenedRun) -> None:
    (axes,) = draw("relations", [run], Choice(shape="weights", clients=("client-03",))).axes
    with np.load(run.directory.relations / "fedora-released/seed0/round00006.npz") as stored:
        row = stored["propagation"][3]
    assert sorted(line.get_ydata()[-1] for line in axes.lines) == pytest.approx(sorted(row))
    (own,) = [line for line in axes.lines if to_hex(line.get_color()) == "#000000" and line.get_linewidth() > 1.2]
    assert own.get_ydata()[-1] == pytest.approx(row[3])


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["client-00", "client-10"], ["0", "10"]),
        (["client-1", "client-01"], ["client-1", "client-01"]),
        (["a ward of its own", "ward"], ["a ward of its…", "ward"]),
        (["ward of the north", "ward of the northern coast", "east"], ["ward o…e north", "ward o…n coast", "east"]),
        (["ward of the 1st north", "ward of the 2nd north"], ["ward of the 1…", "ward of the 2…"]),
        (["ward of the north, 1st of all", "ward of the north, 2nd of all"],) * 2,
    ],
)
def test_names_stay_apart_when_they_are_cut(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short
    assert len(set(short)) == len(set(names))


def test_weights_of_clients_whose_names_begin_alike_have_an_entry_each() -> None:
    names = [f"hospital of the {place}" for place in ("north", "east", "south", "west", "isles")]
    frame = pd.DataFrame(np.full((5, 5), 0.2), index=names, columns=names)
    figure = draw_weights({1: frame, 2: frame}, names[:1], 3.3)
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(set(entries)) == len(entries) == len(figure.axes[0].lines) == 5


def test_bubbles_are_as_large_as_the_numbers_of_examples(run: OpenedRun) -> None:
    assert run.portrait is not None
    counts = np.asarray(run.portrait["class_counts"])
    (axes,) = draw("data", [run], Choice()).axes
    bubbles = axes.collections[0]
    client, number = np.nonzero(counts)
    np.testing.assert_array_equal(bubbles.get_offsets(), np.stack([client, number], axis=1))
    np.testing.assert_allclose(bubbles.get_sizes() / bubbles.get_sizes().max(), counts[client, number] / counts.max())


def test_sizes_alone_are_in_the_order_that_is_asked_for(run: OpenedRun) -> None:
    assert run.portrait is not None
    n = [3, 9, 1, 7, 9]
    sizes = replace(run, portrait={**run.portrait, "class_counts": None, "n": {"train": n}})

    def shown(order: str | None) -> list[int]:
        (axes,) = draw("data", [sizes], Choice(order=order)).axes
        clients = [int(tick.get_text()) for tick in axes.get_xticklabels()]
        assert axes.patches[0].get_data().values.tolist() == [n[client] for client in clients]
        return clients

    assert shown(None) == shown("value") == [1, 4, 3, 0, 2]
    assert shown("client") == [0, 1, 2, 3, 4]
    assert shown("group") == [0, 2, 4, 1, 3]


def test_classes_have_their_names(run: OpenedRun) -> None:
    assert run.portrait is not None
    labels = [f"{name}!" for name, _ in zip("abcdefghijklmnop", run.portrait["class_counts"][0], strict=False)]
    (axes,) = draw("data", [replace(run, portrait={**run.portrait, "labels": labels})], Choice()).axes
    shown = {tick.get_text() for tick in axes.get_yticklabels()}
    assert shown
    assert shown <= set(labels)


def test_scatter_takes_the_gains_of_the_seed_whose_data_are_described(run: OpenedRun) -> None:
    assert run.portrait is not None
    (axes,) = draw("scatter", [run], Choice(against="angle")).axes
    (points,) = [line for line in axes.lines if line.get_label() == "FEDORA"]
    np.testing.assert_array_equal(points.get_xdata(), run.portrait["columns"]["angle"])
    gain = 100 * (run.results["fedora", "released", 0].values - 0.5)
    np.testing.assert_allclose(points.get_ydata(), gain)


@pytest.mark.parametrize(
    ("kind", "order"), [("scatter", None), ("data", None), ("gain", "n"), ("accuracy", "group"), ("relations", "group")]
)
def test_data_of_another_seed_than_is_described_are_not_drawn_as_if_they_were(
    run: OpenedRun, kind: str, order: str | None
) -> None:
    with pytest.raises(CoterieError, match=r"--seed 1: .* describes the data of seed 0; leave it out"):
        draw(kind, [run], Choice(seed=1, order=order))


def test_groups_of_another_seed_colour_nothing(run: OpenedRun) -> None:
    colours = [
        {
            to_hex(colour)
            for colour in draw("relations", [run], Choice(shape="graph", seed=seed))
            .axes[0]
            .collections[0]
            .get_facecolors()
        }
        for seed in (0, 1)
    ]
    assert len(colours[0]) > 1
    assert len(colours[1]) == 1


def test_ranks_stand_in_their_places_and_cliques_join_them() -> None:
    figure = draw_ranks({"LOCAL": 3.0, "FEDORA": 1.2, "Ditto": 1.8}, 0.9, [("FEDORA", "Ditto"), ("LOCAL",)], 3.3)
    (axes,) = figure.axes
    written = [text.get_text() for text in axes.texts]
    assert {"FEDORA 1.20", "Ditto 1.80", "3.00 LOCAL", "CD = 0.90"} <= set(written)
    x = {line.get_gid(): line.get_xdata() for line in axes.lines}
    (cliques,) = [line for line in axes.lines if line.get_gid() == "clique"]
    stems = [line.get_xdata()[0] for line in axes.lines if line.get_gid() == "rank"]  # best first
    unit = (stems[2] - stems[0]) / (3.0 - 1.2)
    assert stems[1] - stems[0] == pytest.approx(0.6 * unit)
    assert np.ptp(x["cd"]) == pytest.approx(0.9 * unit)
    low, high = cliques.get_xdata()
    assert low < stems[0] < stems[1] < high < stems[2]


def test_ranks_are_those_of_the_comparison(finished: Path) -> None:
    wanted = compare([finished]).ranks
    assert wanted is not None
    (axes,) = draw("ranks", [open_run(finished)], Choice(width=6.9)).axes
    written = " ".join(text.get_text() for text in axes.texts)
    assert f"CD = {wanted.critical_difference:.2f}" in written
    for label, rank in wanted.average.items():
        assert f"{label} {rank:.2f}" in written or f"{rank:.2f} {label}" in written
    with pytest.raises(CoterieError, match="leave --system out"):
        draw("ranks", [open_run(finished)], Choice(systems=("fedavg",)))


def test_ranks_of_one_seed_are_over_its_blocks(tmp_path: Path) -> None:
    """The order of the systems is another with each seed, and all are alike over both."""
    better, worse, even = [0.9] * 4, [0.1] * 4, [0.5] * 4
    results = {"local": {0: even, 1: even}, "fedavg": {0: better, 1: worse}, "fedora": {0: worse, 1: better}}
    opened = open_run(made(tmp_path / "run", results, seeds=[0, 1]))

    def written(seed: int | None) -> str:
        return " ".join(text.get_text() for text in draw("ranks", [opened], Choice(seed=seed, width=6.9)).axes[0].texts)

    assert all(f"{label} 2.00" in written(None) or f"2.00 {label}" in written(None) for label in results)
    for seed, best in ((0, "fedavg"), (1, "fedora")):
        assert f"{best} 1.00" in written(seed) or f"1.00 {best}" in written(seed)


def test_two_runs_side_by_side_have_systems_of_their_own(run: OpenedRun, tmp_path: Path) -> None:
    systems = {("local", ""): "LOCAL", ("ditto", ""): "Ditto"}
    other = write_run(tmp_path / "other", systems=systems, related=False)
    (axes,) = draw("curves", [run, other], Choice()).axes
    assert [str(line.get_label()) for line in axes.lines] == [
        "LOCAL (run)",
        "FedAvg",
        "FEDORA",
        "LOCAL (other)",
        "Ditto",
    ]
    colours = {str(line.get_label()): to_hex(line.get_color()).upper() for line in axes.lines}
    assert colours["LOCAL (run)"] == colours["LOCAL (other)"] == ALONE
    assert colours["Ditto"] == COLOURS[2]
    with pytest.raises(CoterieError, match="for one run; 2 were given"):
        draw("data", [run, other], Choice())


def test_runs_whose_directories_have_one_name_stay_apart(run: OpenedRun, tmp_path: Path) -> None:
    pair = [open_run(shutil.copytree(run.directory.path, tmp_path / folder / "r")) for folder in "ab"]
    (axes,) = draw("curves", pair, Choice()).axes
    labels = [f"{label} ({one.directory.path})" for one in pair for label in ("LOCAL", "FedAvg", "FEDORA")]
    assert [str(line.get_label()) for line in axes.lines] == labels
    (axes,) = draw("accuracy", pair, Choice(width=40)).axes
    assert [str(bars.get_label()) for bars in axes.containers] == labels


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_given_twice_is_refused(
    run: OpenedRun, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(run.directory.path, tmp_path / "r")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoterieError, match="r is given twice"):
        draw(kind, [open_run(path), open_run("r")], Choice())


def test_a_run_of_one_client_and_of_odd_names(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", k=1, names=["$x_1$ of the northern ward"])
    for kind in KINDS:
        figure = draw(kind, [one], Choice())
        figure.canvas.draw()
    assert "$x_1$ of the …" in texts(draw("gain", [one], Choice()))


@pytest.mark.parametrize(
    ("kind", "choice", "sentence"),
    [
        (
            "curves",
            Choice(systems=("FEDROA",)),
            "--system FEDROA: there are LOCAL, FedAvg, FEDORA; did you mean FEDORA?",
        ),
        ("curves", Choice(seed=7), "--seed 7: there are 0, 1"),
        ("curves", Choice(metric="f1"), "no test f1 by round; there are test accuracy, validation accuracy"),
        ("gain", Choice(systems=("LOCAL",)), "no gains over LOCAL"),
        ("gain", Choice(order="height"), "knows n, similarity, angle, group"),
        ("scatter", Choice(against="height"), "--against height: .* knows n, similarity, angle, group"),
        ("relations", Choice(systems=("FedAvg",)), "no relations of FedAvg are stored.*save_relations"),
        ("relations", Choice(rounds=(3,)), "--round 3: FEDORA has relations of round 2, 4, 6; save_relations"),
        ("relations", Choice(matrix="w"), "FEDORA has no relations called 'w'; it has similarity, propagation"),
        ("relations", Choice(shape="weights", clients=("client-3",)), "did you mean client-03?"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(run: OpenedRun, kind: str, choice: Choice, sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence.replace("?", r"\?")):
        draw(kind, [run], choice)


def test_a_graph_of_too_many_clients_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", k=120, rounds=(6,), seeds=(0,))
    with pytest.raises(CoterieError, match="120 clients"):
        draw("relations", [run], Choice(shape="graph"))
    matrix = draw("relations", [run], Choice()).axes[0]
    assert len(matrix.get_xticks()) <= 30
