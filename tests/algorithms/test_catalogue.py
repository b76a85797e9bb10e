"""The catalogue of exact tests, T01 to T27: each number is a test here, or names tests elsewhere that exist.

Full and partial participation, momentum and weight decay, ragged clients, float64 and 1e-10 wherever a test is here.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.contract import available_algorithms
from coterie.engines import Participation
from coterie.testing.check import subjects_of
from coterie.testing.subject import MOMENTUM
from coterie.testing.toys import RAGGED
from coterie.training import TrainingSettings
from toys import HALF, alike, classified, personal, run, simulation

TESTS = Path(__file__).resolve().parents[1]
Options = dict[str, Any]


def trained(name: str, options: Options, federation: Any = RAGGED, **settings: Any) -> Any:
    sim = simulation(federation, name, options=options, **{"training": MOMENTUM, "rounds": 3, **settings})
    run(sim)
    return sim


# --- T01: K = 1 --------------------------------------------------------------------------------------------------

ALONE: list[tuple[str, Options]] = [
    ("fedavg", {}),
    ("fedprox", {"mu": 0.0}),
    ("fedper", {}),
    ("ifca", {"clusters": 1}),
    ("fedem", {"components": 1}),
    ("cfl", {}),
    ("fesem", {"clusters": 1}),
    ("feddwa", {}),
    ("pgfed", {"mu": 0.0}),
    ("fedora", {"variant": "paper", "epsilon": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), ALONE, ids=[name for name, _ in ALONE])
def test_t01_a_single_client_is_local(name: str, options: Options) -> None:
    one = classified((9,))
    ours, alone = trained(name, options, one), trained("local", {}, one)
    torch.testing.assert_close(personal(ours), personal(alone), rtol=0, atol=1e-10)


# --- T02: identical clients --------------------------------------------------------------------------------------

WHOLE = TrainingSettings(epochs=2, batch_size=1000, lr=0.1, momentum=0.5)
SYMMETRIC = [s for c in available_algorithms().values() for s in subjects_of(c) if "symmetric" not in s.claims.exempt]


@pytest.mark.parametrize("subject", SYMMETRIC, ids=[subject.name for subject in SYMMETRIC])
def test_t02_identical_clients_keep_equal_models(subject: Any) -> None:
    sim = subject.simulation(alike(5), subject.claims.symmetric, rounds=3, training=WHOLE)
    run(sim)
    models = sim.report_models().flat()
    torch.testing.assert_close(models, models[:1].expand_as(models), rtol=0, atol=1e-10)


# --- T03: FedAvg -------------------------------------------------------------------------------------------------

UNIFORM: Options = {"weights": "uniform"}
FEDAVG: list[tuple[str, Options, Options]] = [
    ("fedprox", {"mu": 0.0}, {}),
    ("fedavgm", {"beta": 0.0}, {}),
    ("fedper", {"head_layers": 0}, {}),
    ("fedper", {"head_layers": 0, **UNIFORM}, UNIFORM),
    ("lg-fedavg", {"shared_layers": 99}, {}),
    ("lg-fedavg", {"shared_layers": 99, **UNIFORM}, UNIFORM),
    ("ifca", {"clusters": 1}, {}),
    ("ifca", {"clusters": 1, **UNIFORM}, UNIFORM),
    ("fedem", {"components": 1}, {}),
    ("cfl", {"eps1": 0.0}, UNIFORM),
    ("cfl", {"eps1": 0.0, "weights": "samples"}, {}),
]
GLOBAL_PATHS: list[tuple[str, Options]] = [
    ("pgfed", {"mu": 0.0}),
    ("apfl", {}),
    ("apfl", {"alpha": 0.3, "alpha_update": "every_batch"}),
    ("ditto", {"lambda": 0.7}),
]


@pytest.mark.parametrize("participation", [Participation(), HALF], ids=["all", "half"])
@pytest.mark.parametrize(("name", "options", "of"), FEDAVG, ids=[f"{n}-{o}" for n, o, _ in FEDAVG])
def test_t03_without_its_idea_it_is_fedavg(name: str, options: Options, of: Options, participation: Any) -> None:
    ours, theirs = (trained(n, o, participation=participation) for n, o in ((name, options), ("fedavg", of)))
    torch.testing.assert_close(personal(ours), personal(theirs), rtol=0, atol=1e-10)


@pytest.mark.parametrize("participation", [Participation(), HALF], ids=["all", "half"])
@pytest.mark.parametrize(("name", "options"), GLOBAL_PATHS, ids=[f"{n}-{o}" for n, o in GLOBAL_PATHS])
def test_t03_the_global_path_is_fedavg(name: str, options: Options, participation: Any) -> None:
    ours, theirs = (trained(n, o, participation=participation) for n, o in ((name, options), ("fedavg", {})))
    torch.testing.assert_close(ours.server.w.flat(), theirs.server.w.flat(), rtol=0, atol=1e-10)


def test_t03_per_fedavg_without_a_first_step_is_fedavg() -> None:
    """alpha = 0: the rate beta is training's."""
    for variant in ("fo", "hf"):
        ours, theirs = trained("per-fedavg", {"variant": variant, "alpha": 0.0}), trained("fedavg", {})
        torch.testing.assert_close(ours.server.w.flat(), theirs.server.w.flat(), rtol=0, atol=1e-10)


# --- T04: LOCAL --------------------------------------------------------------------------------------------------

LOCAL: list[tuple[str, Options]] = [
    ("fedu", {"rho": 0.0}),
    ("ditto", {"lambda": 0.0}),
    ("apfl", {"alpha": 1.0, "alpha_update": "fixed"}),
    ("fedamp", {"lambda": 0.0}),
    ("fedfomo", {"neighbours": 0}),
    ("l2c", {"self_weight": 1.0}),
    ("feddwa", {"topk": 1, "guidance": "full_gradient"}),
    ("federico", {"neighbours": 0, "init_models": "common"}),
    ("lg-fedavg", {"shared_layers": 0}),
    ("fedper", {"head_layers": 99}),
]


@pytest.mark.parametrize("participation", [Participation(), HALF], ids=["all", "half"])
@pytest.mark.parametrize(("name", "options"), LOCAL, ids=[name for name, _ in LOCAL])
def test_t04_without_others_it_is_local(name: str, options: Options, participation: Any) -> None:
    ours, theirs = (trained(n, o, participation=participation) for n, o in ((name, options), ("local", {})))
    torch.testing.assert_close(personal(ours), personal(theirs), rtol=0, atol=1e-10)


# --- the numbers -------------------------------------------------------------------------------------------------

CATALOGUE: dict[str, list[str]] = {
    "T01": ["algorithms/test_catalogue.py::test_t01_a_single_client_is_local"],
    "T02": ["algorithms/test_catalogue.py::test_t02_identical_clients_keep_equal_models"],
    "T03": [
        "algorithms/test_catalogue.py::test_t03_without_its_idea_it_is_fedavg",
        "algorithms/test_catalogue.py::test_t03_the_global_path_is_fedavg",
        "algorithms/test_catalogue.py::test_t03_per_fedavg_without_a_first_step_is_fedavg",
    ],
    "T04": ["algorithms/test_catalogue.py::test_t04_without_others_it_is_local"],
    "T06": [
        "relations/test_propagation.py::test_closed_form_is_the_limit_of_the_iteration",
        "relations/test_propagation.py::test_weights_by_sample_size_mix_with_the_federated_average",
        "relations/test_propagation.py::test_infinite_alpha_is_the_degree_weighted_average",
        "relations/test_propagation.py::test_propagation_mixes_convexly",
        "relations/test_subspaces.py::test_signs_and_rotations_leave_the_similarity_unchanged",
        "relations/test_propagation.py::test_exact_equals_equation_six_for_circulant_weights",
    ],
    "T07": [
        "relations/test_inverse_distance_weights.py::test_they_solve_the_quadratic_program",
        "relations/test_inverse_distance_weights.py::test_zeros_share_the_weight",
        "relations/test_inverse_distance_weights.py::test_weights_follow_their_clients",
    ],
    "T08": [
        "algorithms/test_four_papers.py::test_pgfed_alpha_gradient_is_the_linearised_risk_with_one_participant",
        "algorithms/test_four_papers.py::test_pgfed_gradient_of_theta_is_that_of_the_objective_with_one_participant",
        "algorithms/test_four_papers.py::test_pgfed_alpha_is_clipped_at_zero_and_may_return",
        "algorithms/test_four_papers.py::test_pgfedmo_without_momentum_is_pgfed",
    ],
    "T09": [
        "algorithms/test_four_papers.py::test_federico_central_posterior_is_the_softmax_of_accumulated_losses",
        "algorithms/test_four_papers.py::test_federico_weights_do_not_see_a_constant_in_the_losses",
        "algorithms/test_four_papers.py::test_federico_one_hot_weights_give_local_updates",
    ],
    "T24": [
        "evaluation/test_transfer.py",
        "evaluation/test_metrics.py::test_rounds_to_target_is_the_first_round_that_reaches_it",
    ],
    "T25": [
        "federation/test_rotation_rule.py::test_published_balanced_sizes",
        "federation/test_rotation_rule.py::test_published_imbalanced_sizes",
        "federation/test_share_rules.py::test_disjoint_complete_and_nobody_is_empty",
        "federation/test_shards_rule.py::test_class_limits_of_the_published_settings",
        "federation/test_share_rules.py::test_the_papers_dirichlet_is_the_first_draw_that_is_large_enough",
        "federation/test_label_groups_rule.py::test_labels_are_cut_at_random_into_like_sets",
    ],
    "T26": ["models/test_published_models.py"],
    **{number: ["testing/test_conformance.py::test_identity"] for number in ("T21", "T22", "T23", "T27")},
}
BY_NUMBER = {
    "T05": "algorithms/test_graph_methods.py",
    "T10": "algorithms/test_drift_corrections.py",
    "T11": "algorithms/test_drift_corrections.py",
    "T12": "algorithms/test_mixed_and_meta.py",
    "T13": "algorithms/test_mixed_and_meta.py",
    "T14": "algorithms/test_cluster_methods.py",
    "T15": "algorithms/test_cluster_methods.py",
    "T16": "algorithms/test_cluster_methods.py",
    "T17": "algorithms/test_mixed_and_meta.py",
    "T18": "algorithms/test_fedrod.py",
    "T19": "algorithms/test_chosen_models.py",
    "T20": "algorithms/test_pfedhn.py",
}
"""Files whose tests carry the number in their name or docstring."""


def defined_in(file: str) -> dict[str, str]:
    """The tests of a file by name, with their docstrings."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
    return {function.name: ast.get_docstring(function) or "" for function in functions}


def test_every_number_has_its_tests() -> None:
    assert CATALOGUE.keys() | BY_NUMBER.keys() == {f"T{number:02}" for number in range(1, 28)}
    for tests in CATALOGUE.values():
        for test in tests:
            file, _, name = test.partition("::")
            assert name in defined_in(file) if name else defined_in(file), test
    for number, file in BY_NUMBER.items():
        named = [name for name, about in defined_in(file).items() if number in about or number.lower() in name.lower()]
        assert named, f"{number} in {file}"
