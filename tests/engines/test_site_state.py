"""What a side remembers: kinds of values, who owns the storage, chunks and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract import Algorithm, Server, Site, available_algorithms, make_algorithm
from coterie.contract.state import storages
from coterie.engines import Simulation, checkpoint
from coterie.models import Models
from toys import HALF, LOCATION, classified, located, models_like, run, same, saved, simulation, state

FOUR = located([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
CHUNKS = pytest.mark.parametrize("chunk", [1, 3, 4])


class Counter:
    """Anything with ``state_dict``."""

    def __init__(self) -> None:
        self.total = torch.zeros(1)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Collector(Algorithm):
    """Keeps one of everything on both sides."""

    name = "collector"

    def setup(self, server: Server) -> None:
        server.number, server.text, server.flag, server.nothing = 0, "", False, None
        server.table = {"a": [server.zeros(2), {"b": server.initial_model()}], "c": (1, 2.5)}
        server.object = Counter()
        server.models = server.initial_models()

    def start(self, site: Site) -> None:
        site.number, site.real, site.flag, site.text = 1, 0.5, True, "new"
        site.vector = torch.zeros(site.k, 2)
        site.ints = torch.zeros(site.k, dtype=torch.int64)
        site.nest = {"a": [site.theta, {"b": torch.zeros(site.k)}], "c": (site.theta["all"], 3)}

    def round(self, server: Server, cohort: Tensor) -> None:
        up = server.ask(self.local_update, cohort)
        server.number, server.text, server.flag = server.number + 1, f"round {server.round}", not server.flag
        server.table["a"][0] += 1.0
        server.table = {**server.table, "d": up.vector.sum(0)}
        server.object.total += 1
        server.models[up.clients] = up.theta

    def local_update(self, site: Site) -> dict[str, Any]:
        site.number = site.number + 1
        site.number += 1
        site.real = site.real * 2
        site.flag = ~site.flag
        site.text = [f"{name} in round {site.round}" for name in site.names]
        site.vector = site.vector + site.clients.unsqueeze(1)
        site.ints = site.ints - site.clients
        site.theta = site.theta + site.clients.double()
        nest = site.nest
        site.nest = {
            "a": [nest["a"][0] + 1.0, {"b": nest["a"][1]["b"] + site.clients}],
            "c": (site.theta, nest["c"][1]),
        }
        return {"vector": site.vector, "theta": site.theta}


def collected(chunk: int, rounds: int = 3, **settings: Any) -> Simulation:
    return simulation(FOUR, Collector(), LOCATION, rounds=rounds, chunk=chunk, **settings)


@CHUNKS
def test_every_kind_of_state(chunk: int) -> None:
    sim = collected(chunk, absent={2: ("client-1",)})
    run(sim)
    assert state(sim, "number").tolist() == [7, 5, 7, 7]
    assert state(sim, "real").tolist() == [4.0, 2.0, 4.0, 4.0]
    assert state(sim, "flag").tolist() == [False, True, False, False]
    assert state(sim, "text") == [f"client-{i} in round 3" for i in range(4)]
    assert state(sim, "vector").tolist() == [[0.0, 0.0], [2.0, 2.0], [6.0, 6.0], [9.0, 9.0]]
    assert state(sim, "ints").tolist() == [0, -2, -6, -9]
    nest = state(sim, "nest")
    assert nest["a"][0].flat()[:, 0].tolist() == [3.0, 2.0, 3.0, 3.0]
    assert nest["a"][1]["b"].tolist() == [0.0, 2.0, 6.0, 9.0]
    assert nest["c"][0].flat()[:, 0].tolist() == [0.0, 2.0, 6.0, 9.0]
    assert nest["c"][1].tolist() == [3, 3, 3, 3]
    server = sim.server
    assert (server.number, server.text, server.flag, server.nothing) == (3, "round 3", True, None)
    assert server.table["a"][0].tolist() == [3.0, 3.0]
    assert server.table["c"] == (1, 2.5)
    assert server.table["d"].tolist() == [17.0, 17.0]
    assert server.object.total.item() == 3
    assert server.models.flat()[:, 1].tolist() == [0.0, 2.0, 6.0, 9.0]


@CHUNKS
def test_every_kind_of_state_survives_a_checkpoint(chunk: int, tmp_path: Path) -> None:
    whole = collected(chunk, participation=HALF, rounds=4)
    parts = [collected(chunk, participation=HALF, rounds=4)]
    for round in range(5):
        checkpoint.save(tmp_path / "c.pt", parts[-1])
        parts.append(collected(chunk, participation=HALF, rounds=4))
        checkpoint.load(tmp_path / "c.pt", parts[-1])
        assert parts[-1].round == round
        assert same(saved(parts[-1]), saved(whole))
        if round < 4:
            whole.advance()
            parts[-1].advance()
    assert isinstance(parts[-1].server.object, Counter)


def test_an_attribute_may_change_its_kind() -> None:
    class Moody(Algorithm):
        name = "moody"

        def start(self, site: Site) -> None:
            site.value = {"x": 1}

        def local_update(self, site: Site) -> dict[str, Any]:
            site.value = torch.arange(site.k) if site.round == 1 else [site.value, 2.0]
            return {}

    sim = simulation(FOUR, Moody(), LOCATION, rounds=2)
    sim.advance()
    assert state(sim, "value").tolist() == [0, 1, 2, 3]
    sim.advance()
    assert [part.tolist() for part in state(sim, "value")] == [[0, 1, 2, 3], [2.0] * 4]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (torch.zeros(3), ValueError, "site.thing needs one row for each of the 4 clients, not 3"),
        (None, TypeError, "site.thing cannot hold NoneType"),
        ({1, 2}, TypeError, "state is made of tensors"),
        (len, TypeError, "state is made of tensors"),
    ],
)
def test_what_cannot_be_state(value: Any, error: type[Exception], message: str) -> None:
    class Odd(Algorithm):
        name = "odd"

        def local_update(self, site: Site) -> dict[str, Any]:
            site.thing = value
            return {}

    with pytest.raises(error, match=message):
        run(simulation(FOUR, Odd(), LOCATION))


def test_undeclared_state_is_named() -> None:
    class Forgetful(Algorithm):
        name = "forgetful"

        def round(self, server: Server, cohort: Tensor) -> None:
            with pytest.raises(AttributeError, match=r"server\.momentum was never set"):
                _ = server.momentum
            server.ask(self.look, cohort)

        def look(self, site: Site) -> dict[str, Any]:
            with pytest.raises(AttributeError, match=r"site.momentum was never set; declare it in start\(site\)"):
                _ = site.momentum
            return {}

    run(simulation(FOUR, Forgetful(), LOCATION, rounds=1))


# --- storage -----------------------------------------------------------------------------------------------------


def tensors_of(sim: Simulation) -> list[tuple[str, set[int]]]:
    found = [(f"server.{name}", storages(value)) for name, value in sim._store.values.items()]
    for leaf, column in sim.bank.columns.items():
        found += [(f"site.{leaf}", storages(column.rows)), (f"site.{leaf} default", storages(column.default))]
    return found


def shared_storage(sim: Simulation) -> list[tuple[str, str]]:
    found = tensors_of(sim)
    return [(a, b) for i, (a, x) in enumerate(found) for b, y in found[i + 1 :] if x & y]


@pytest.mark.parametrize("chunk", [2, 4])
@pytest.mark.parametrize(
    ("name", "variant"), [(n, v) for n, cls in available_algorithms().items() for v in (cls.variants or [None])]
)
def test_no_two_states_share_storage(name: str, variant: str | None, chunk: int) -> None:
    algorithm = make_algorithm(name, variant)
    sim = simulation(classified(), algorithm, rounds=3, chunk=chunk)
    assert shared_storage(sim) == []
    for _ in range(3):
        sim.advance()
        assert shared_storage(sim) == []


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_states_that_one_assigns_to_another_are_copied(chunk: int) -> None:
    class Sharing(Algorithm):
        name = "sharing"

        def setup(self, server: Server) -> None:
            server.a = server.initial_models()
            server.b = server.a
            server.table = server.zeros(4)
            server.same = [server.table, server.table[1:]]

        def round(self, server: Server, cohort: Tensor) -> None:
            up = server.ask(self.local_update, cohort)
            server.a = up.theta
            server.b = server.a
            server.part = server.a[:2]
            server.answers = up.vector
            server.again = server.answers

        def local_update(self, site: Site) -> dict[str, Any]:
            site.theta = site.theta + 1.0
            site.other = site.theta
            site.vector = torch.zeros(site.k)
            site.pair = [site.vector, site.vector]
            return {"theta": site.theta, "vector": site.vector}

    sim = simulation(FOUR, Sharing(), LOCATION, rounds=3, chunk=chunk)
    assert shared_storage(sim) == []
    for number in range(1, 4):
        sim.advance()
        assert shared_storage(sim) == []
        assert sim.server.b.flat()[0, 0].item() == number
        sim.server.a[[0, 1, 2, 3]] = models_like(sim, torch.full((4, 2), 50.0))
        assert sim.server.b.flat()[0, 0].item() == number
        assert state(sim).flat()[0, 0].item() == number
        assert state(sim, "other").flat()[0, 0].item() == number


def test_changing_a_read_value_in_place_changes_no_state() -> None:
    class Vandal(Algorithm):
        name = "vandal"

        def start(self, site: Site) -> None:
            site.vector, site.names_again = torch.zeros(site.k), "text"

        def local_update(self, site: Site) -> dict[str, Any]:
            vector, words = site.vector, site.names_again
            vector += 1.0
            words[0] = "changed"
            return {}

    sim = simulation(FOUR, Vandal(), LOCATION, rounds=2)
    run(sim)
    assert state(sim, "vector").tolist() == [0.0] * 4
    assert state(sim, "names_again") == ["text"] * 4


def test_server_rows_are_the_servers_to_change() -> None:
    sim = simulation(FOUR, "fedamp", LOCATION)
    theta = sim.server.w
    assert isinstance(theta, Models)
    sim.server.w[[1]] = models_like(sim, [[3.0, 4.0]])
    assert sim.server.w.flat().tolist() == [[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]]
