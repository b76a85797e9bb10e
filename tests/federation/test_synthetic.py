"""Synthetic(alpha, beta): what is drawn is distributed as the paper has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from coterie.cli import app
from coterie.config import load_config, parse_config
from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation
from coterie.federation.build import parse
from coterie.federation.datasets import SOURCES, synthetic
from coterie.federation.examples import Examples


def draw(seed: int = 0, **options: Any) -> Examples:
    return SOURCES["synthetic"].load(None, seed, synthetic.Synthetic(**options))


def by_client(examples: Examples, clients: int) -> torch.Tensor:
    """Inputs ``(K, n, features)`` of clients of one size."""
    return examples.inputs.view(clients, -1, examples.inputs.shape[1]).double()


def test_shapes_and_groups() -> None:
    examples = draw(clients=12, examples=20, features=7, classes=4)
    assert (examples.inputs.shape, examples.inputs.dtype) == ((240, 7), torch.float32)
    assert (examples.targets.shape, examples.targets.dtype) == ((240,), torch.int64)
    assert set(examples.targets.tolist()) <= set(range(4))
    assert (examples.classes, list(examples.groups)) == (4, ["client"])
    assert list(examples.groups["client"]) == [f"client-{i:02d}" for i in range(12) for _ in range(20)]


def test_a_seed_and_its_options_say_everything() -> None:
    assert draw(3, clients=5).digest == draw(3, clients=5).digest
    others = [draw(4, clients=5), draw(3, clients=5, beta=2), draw(3, clients=5, iid=True)]
    assert len({draw(3, clients=5).digest, *(other.digest for other in others)}) == 4


def test_variances_fall_with_the_feature() -> None:
    """``S_jj = j^-1.2``; 60,000 examples give a variance with a standard error of 0.6 %."""
    examples = draw(clients=60, examples=1000, features=8)
    x = by_client(examples, 60)
    variance = (x - x.mean(1, keepdim=True)).square().sum((0, 1)) / (60 * 999)
    expected = torch.arange(1, 9).double() ** -1.2
    assert torch.allclose(variance, expected, rtol=0.03)
    within = (x - x.mean(1, keepdim=True)).flatten(0, 1)
    correlation = torch.corrcoef(within.T) - torch.eye(8)
    assert correlation.abs().max() < 0.02


@pytest.mark.parametrize("beta", [0.0, 4.0])
def test_means_differ_by_beta(beta: float) -> None:
    """``v_k = B_k + N(0, 1)``: features of one client share ``B_k``, whose variance is beta."""
    x = by_client(draw(clients=2000, examples=20, features=60, beta=beta), 2000)
    means = x.mean(1)[:, 20:]  # features with little variance, whose mean tells v
    assert means.mean(1).var().item() == pytest.approx(beta + 1 / 40, rel=0.15)
    assert means.var(1).mean().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("alpha", [0.0, 4.0])
def test_rules_differ_by_alpha(alpha: float) -> None:
    options = synthetic.Synthetic(alpha=alpha, features=20, classes=5)
    weights, bias = synthetic._rules(2000, alpha, options, np.random.default_rng(0))
    assert (weights.shape, bias.shape) == ((2000, 20, 5), (2000, 5))
    everything = np.concatenate([weights.reshape(2000, -1), bias], axis=1)
    assert everything.mean(1).var() == pytest.approx(alpha + 1 / 105, rel=0.15)  # u_k is one number a client
    assert everything.var(1).mean() == pytest.approx(1, rel=0.02)


def test_alpha_shifts_the_scores_of_all_classes_alike() -> None:
    """So the labels do not depend on it, apart from rounding: a property of the paper's definition."""
    without, much = draw(clients=40, alpha=0), draw(clients=40, alpha=100)
    assert torch.equal(without.inputs, much.inputs)
    assert (without.targets == much.targets).double().mean() > 0.999


def test_labels_are_those_of_each_client_s_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also across the parts in which clients are drawn."""
    monkeypatch.setattr(synthetic, "TOGETHER", 4)
    rules: list[Any] = []
    make = synthetic._rules
    monkeypatch.setattr(synthetic, "_rules", lambda *given: rules.append(make(*given)) or rules[-1])
    examples = draw(clients=9, examples=50, sizes="lognormal")
    weights = np.concatenate([weights for weights, _ in rules])
    bias = np.concatenate([bias for _, bias in rules])
    assert len(weights) == 9
    client = [int(name.removeprefix("client-")) for name in examples.groups["client"]]
    scores = np.einsum("nj,njc->nc", examples.inputs.numpy(), weights[client]) + bias[client]
    probabilities = torch.from_numpy(scores).softmax(1)
    assert torch.equal(probabilities.argmax(1), examples.targets)


def test_iid_clients_have_one_rule_and_one_distribution() -> None:
    """A rule learned from half of the clients holds for the others, which is not so without ``iid``."""
    found = {}
    for iid in (True, False):
        examples = draw(clients=40, examples=100, features=10, classes=3, alpha=0, beta=0, iid=iid)
        x = torch.cat([examples.inputs, torch.ones(4000, 1)], dim=1)
        wanted = torch.nn.functional.one_hot(examples.targets, 3).float()
        rule = torch.linalg.lstsq(x[:2000], wanted[:2000]).solution
        found[iid] = ((x[2000:] @ rule).argmax(1) == examples.targets[2000:]).double().mean().item()
        means = by_client(examples, 40).mean(1)
        spread = (means.square() * 100 / (torch.arange(1, 11).double() ** -1.2)).mean().item()
        assert (spread == pytest.approx(1, rel=0.3)) is iid  # v = 0: means are off by sampling alone
    assert found[True] > 0.85
    assert found[False] < 0.7


def test_lognormal_sizes() -> None:
    options = synthetic.Synthetic(clients=200_000, examples=389, sizes="lognormal")
    sizes = synthetic._sizes(options, np.random.default_rng(0))
    assert sizes.min() >= 10
    assert sizes.min() == pytest.approx(50, abs=1)  # the authors' least
    assert sizes.max() == pytest.approx(10_000 + 50, rel=0.005)
    assert sizes.mean() == pytest.approx(389, rel=0.02)
    assert np.median(sizes) == pytest.approx(np.exp(4) + 50, rel=0.02)
    quartiles = np.quantile(sizes, [0.25, 0.75]) - 49.5  # sizes are rounded down
    assert quartiles == pytest.approx(np.exp([4 - 1.349, 4 + 1.349]), rel=0.05)
    few = synthetic._sizes(options.model_copy(update={"examples": 30}), np.random.default_rng(0))
    assert few.min() >= 10
    assert few.max() < 27 * 30
    assert few.mean() == pytest.approx(30, rel=0.03)


def test_every_client_divides_its_own_examples() -> None:
    section = {"source": "synthetic", "clients": 300, "examples": 20, "partition": {"rule": "natural"}}
    federation = build_federation(section, seed=1)
    assert federation.names == tuple(f"client-{i:03d}" for i in range(300))
    for split, n in (("train", 12), ("validation", 4), ("test", 4)):
        data = federation.split(split)  # type: ignore[arg-type]
        assert data.n.tolist() == [n] * 300
        assert data.index is not None
        assert torch.equal(data.index // 20, data.owners())
    together = torch.cat([federation.split(split).index for split in ("train", "validation", "test")])  # type: ignore[misc, arg-type]
    assert torch.equal(together.sort().values, torch.arange(6000))
    assert federation.source["clients"] == 300
    assert federation.columns == {}
    assert federation.select([5, 2]).names == ("client-005", "client-002")


def test_other_rules_and_their_columns() -> None:
    section = {"source": "synthetic", "examples": 60, "partition": {"rule": "dominant", "clients": 4, "groups": 2}}
    federation: Federation = build_federation(section, seed=0)
    assert federation.columns == {"group": [0, 0, 1, 1]}
    assert federation.select([3, 0]).columns == {"group": [1, 0]}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"alpha": -1}, "federation.alpha: .*greater than or equal to 0"),
        ({"client": 4}, r"Unknown key federation.client. Did you mean clients\?"),
        ({"classes": 1}, "federation.classes"),
        ({"sizes": "lognormal", "examples": 9}, "federation: sizes: lognormal gives every client 10 examples"),
    ],
)
def test_mistakes(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        parse({"source": "synthetic", "partition": {"rule": "natural"}, **keys})


def test_overrides() -> None:
    tree = {"federation": {"source": "synthetic", "partition": {"rule": "natural"}}}
    federation = parse_config(tree, ["federation.alpha=0.5", "federation.clients=7"]).federation
    assert federation.options == synthetic.Synthetic(alpha=0.5, clients=7)


def coterie(*words: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


EXPERIMENT = """\
federation: {source: synthetic, clients: 6, alpha: 0.5, examples: 20, partition: {rule: natural}}
model: linear
training: {epochs: 1, lr: 0.1}
algorithms: [local, fedavg]
rounds: 2
threads: 1
"""


def test_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(EXPERIMENT)
    done = coterie("run", path, "--output", tmp_path / "run", "-s", "federation.beta=0", "--quiet")
    assert done.exit_code == 0, done.output
    stored = load_config(tmp_path / "run/config.yaml").federation
    assert stored.options == synthetic.Synthetic(clients=6, alpha=0.5, beta=0, examples=20)
    assert set(pd.read_parquet(tmp_path / "run/clients.parquet")["client"]) == {f"client-{i:02d}" for i in range(6)}
    shown = json.loads(coterie("show", path, "--json").stdout)
    assert (shown["source"]["alpha"], shown["source"]["clients"], len(shown["clients"])) == (0.5, 6, 6)
    assert coterie("show", path).exit_code == 0


def test_the_options_are_listed() -> None:
    listed = {source["name"]: source for source in json.loads(coterie("datasets", "--json").stdout)["sources"]}
    options = {option["name"]: option for option in listed["synthetic"]["options"]}
    assert options["sizes"]["choices"] == ["equal", "lognormal"]
    assert (options["clients"]["default"], options["clients"]["required"]) == (30, False)
    assert all(option["meaning"] for option in options.values())
    assert listed["digits"]["options"] == []
    table = coterie("datasets").stdout
    assert "option of synthetic" in table
    assert "equal | lognormal" in " ".join(table.split())
