"""What travels by ``ask``: values as the clients see them, as the server gets them back, and in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract import Algorithm, Server, Site, broadcast, mixture, pick
from coterie.models import Models
from toys import BLIND, LINEAR, LOCATION, Recording, classified, located, models_like, run, simulation

THREE = located([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
DOUBLE = 8


def bytes_of(sim: Any, direction: str, kind: str = "model", phase: str = "train") -> list[int]:
    table = sim.ledger.per_client()
    rows = table[(table.phase == phase) & (table.direction == direction) & (table.kind == kind)]
    return rows["bytes"].tolist()


@dataclass(frozen=True)
class Posting(Algorithm):
    """Sends whatever ``parcel`` makes and keeps the answers."""

    name = "posting"

    def setup(self, server: Server) -> None:
        server.bank = server.initial_models(distinct=True)
        server.got = server.zeros(server.K)

    def round(self, server: Server, cohort: Tensor) -> None:
        server.got = server.ask(self.receive, cohort, **self.parcel(server, cohort)).got

    def parcel(self, server: Server, cohort: Tensor) -> dict[str, Any]:
        raise NotImplementedError

    def receive(self, site: Site, **values: Any) -> dict[str, Any]:
        return {"got": site.clients.double()}


def posted(parcel: Any, rows: Any = ((0.0, 1.0), (2.0, 3.0), (4.0, 5.0)), **settings: Any) -> Recording:
    class Here(Posting):
        def parcel(self, server: Server, cohort: Tensor) -> dict[str, Any]:
            return dict(parcel(server, cohort))

    sim = simulation(THREE, Here(), LOCATION, engine=Recording, rounds=1, **settings)
    sim.server.bank = models_like(sim, rows)
    run(sim)
    return sim


def received(sim: Recording, name: str) -> Tensor:
    """What all clients saw, in their order."""
    parts = [call.received[name] for call in sim.calls]
    (only,) = sim.stack.layout.parameters
    return torch.cat([part.tensors[only] if isinstance(part, Models) else part for part in parts])


CHUNKS = pytest.mark.parametrize("chunk", [1, 2, 3])


@CHUNKS
def test_broadcast_reaches_every_client_whole(chunk: int) -> None:
    sim = posted(
        lambda server, cohort: {"w": broadcast(server.bank[1]), "z": broadcast(torch.arange(4.0))}, chunk=chunk
    )
    assert received(sim, "w").tolist() == [[2.0, 3.0]] * 3
    assert received(sim, "z").tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3
    assert bytes_of(sim, "down") == [2 * DOUBLE] * 3
    assert bytes_of(sim, "down", "summary") == [4 * 4] * 3  # float32


@CHUNKS
def test_broadcast_of_several_models_arrives_as_candidates(chunk: int) -> None:
    sim = posted(lambda server, cohort: {"w": broadcast(server.bank)}, chunk=chunk)
    assert received(sim, "w").tolist() == [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]] * 3
    assert bytes_of(sim, "down") == [6 * DOUBLE] * 3


@CHUNKS
def test_broadcast_number(chunk: int) -> None:
    sim = posted(lambda server, cohort: {"z": broadcast(torch.tensor(2.5, dtype=torch.float64))}, chunk=chunk)
    assert received(sim, "z").tolist() == [2.5] * 3
    assert bytes_of(sim, "down", "meta") == [DOUBLE] * 3


@CHUNKS
def test_rows_go_to_their_clients(chunk: int) -> None:
    order = torch.tensor([2, 0, 1])
    sim = posted(lambda server, cohort: {"w": server.bank[order], "z": order.double()}, chunk=chunk)
    assert received(sim, "w").tolist() == [[4.0, 5.0], [0.0, 1.0], [2.0, 3.0]]
    assert received(sim, "z").tolist() == [2.0, 0.0, 1.0]
    assert bytes_of(sim, "down") == [2 * DOUBLE] * 3
    assert bytes_of(sim, "down", "meta") == [DOUBLE] * 3


@CHUNKS
def test_pick_gives_each_client_its_own_rows(chunk: int) -> None:
    index = torch.tensor([[0, 1], [2, 2], [1, 0]])
    sim = posted(lambda server, cohort: {"w": pick(server.bank, index)}, chunk=chunk)
    expected = [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [4.0, 5.0]], [[2.0, 3.0], [0.0, 1.0]]]
    assert received(sim, "w").tolist() == expected
    assert bytes_of(sim, "down") == [4 * DOUBLE] * 3


@CHUNKS
def test_pick_of_a_table(chunk: int) -> None:
    table = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    index = torch.tensor([[0], [1], [1]])
    sim = posted(lambda server, cohort: {"z": pick(table, index)}, chunk=chunk)
    assert received(sim, "z").tolist() == [[[0.0, 1.0]], [[2.0, 3.0]], [[2.0, 3.0]]]
    assert bytes_of(sim, "down", "summary") == [2 * 4] * 3


@CHUNKS
@pytest.mark.parametrize("tables", [False, True])
def test_peers_book_one_transfer_from_owner_to_asker(chunk: int, tables: bool) -> None:
    index = torch.tensor([[0, 1], [1, 2], [0, 1]])  # transfers 1->0, 2->1, 0->2, 1->2; own rows cost nothing

    def parcel(server: Server, cohort: Tensor) -> dict[str, Any]:
        bank = torch.zeros(3, 2, dtype=torch.float64) if tables else server.bank
        return {"w": pick(bank, index, peers=True)}

    sim = posted(parcel, chunk=chunk)
    kind = "summary" if tables else "model"
    assert bytes_of(sim, "down", kind) == []
    # sent + received: client 0 gets one and sends one, client 1 sends two and gets one, client 2 sends one, gets two
    assert bytes_of(sim, "peer", kind) == [2 * 2 * DOUBLE, 3 * 2 * DOUBLE, 3 * 2 * DOUBLE]


@CHUNKS
def test_mixture_is_the_product_of_weights_and_bank(chunk: int) -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)
    sim = posted(lambda server, cohort: {"w": mixture(weights, server.bank)}, chunk=chunk)
    assert received(sim, "w").tolist() == [[1.0, 2.0], [2.0, 3.0], [2.5, 3.5]]
    assert bytes_of(sim, "down") == [2 * DOUBLE] * 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor(1.0), "broadcast"),
        (torch.zeros(2), "one row for each of the 3 asked clients, not 2"),
        (3.0, "Models or a tensor, not float"),
        (broadcast(3.0), "Models or a tensor, not float"),  # type: ignore[arg-type]
        (pick(torch.zeros(5, 1), torch.zeros(4, 2, dtype=torch.int64)), "3 asked clients, not 4"),
    ],
)
def test_wrong_payloads(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        posted(lambda server, cohort: {"z": value})


def test_wrong_mixtures() -> None:
    with pytest.raises(ValueError, match="3 asked clients, not 2"):
        posted(lambda server, cohort: {"w": mixture(torch.ones(2, 3), server.bank)})


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ({"a": 1.0}, TypeError, "Broken.local_update returned a as float"),
        ({"a": torch.tensor(1.0)}, ValueError, "returned a without one row for each of its 3 clients"),
        ({"a": torch.zeros(2)}, ValueError, "returned a without one row for each of its 3 clients"),
    ],
)
def test_wrong_answers(answer: Any, error: type[Exception], message: str) -> None:
    class Broken(Algorithm):
        name = "broken"

        def local_update(self, site: Site) -> Any:
            return answer

    with pytest.raises(error, match=message):
        run(simulation(THREE, Broken(), LOCATION))


def test_answers_name_what_came_back() -> None:
    class Asker(Algorithm):
        name = "asker"

        def round(self, server: Server, cohort: Tensor) -> None:
            up = server.ask(self.local_update, cohort)
            assert len(up) == 3
            assert up.asked.tolist() == [0, 1, 2]
            with pytest.raises(AttributeError, match="the clients returned a, not 'b'"):
                _ = up.b

        def local_update(self, site: Site) -> dict[str, Any]:
            return {"a": site.clients}

    run(simulation(THREE, Asker(), LOCATION, rounds=1))


@CHUNKS
def test_answers_are_stacked_in_the_order_asked(chunk: int) -> None:
    class Backwards(Posting):
        def round(self, server: Server, cohort: Tensor) -> None:
            up = server.ask(self.receive, cohort.flip(0), mark=torch.tensor([7.0, 8.0, 9.0]))
            server.clients, server.got = up.clients, up.got
            server.bank = up.theta

        def receive(self, site: Site, mark: Tensor) -> dict[str, Any]:
            site.theta = site.theta + mark.double()
            return {"got": mark, "theta": site.theta}

    sim = simulation(THREE, Backwards(), LOCATION, rounds=1, chunk=chunk, absent={1: ("client-1",)})
    run(sim)
    assert sim.server.clients.tolist() == [2, 0]
    assert sim.server.got.tolist() == [7.0, 9.0]
    assert sim.server.bank.flat().tolist() == [[7.0, 7.0], [9.0, 9.0]]


@CHUNKS
def test_average_is_renormalised_over_those_that_answer(chunk: int) -> None:
    class Mean(Posting):
        def round(self, server: Server, cohort: Tensor) -> None:
            weights = torch.tensor([1.0, 5.0, 3.0])
            up = server.ask(self.receive, cohort, average=weights)
            server.got, server.count, server.bank = up.got, up.count, up.theta

        def receive(self, site: Site) -> dict[str, Any]:
            value = site.clients.double()
            return {"got": value, "count": site.clients * 10, "theta": site.theta + value}

    sim = simulation(THREE, Mean(), LOCATION, rounds=1, chunk=chunk, absent={1: ("client-1",)})
    run(sim)
    assert sim.server.got.tolist() == [1.5]  # (1 * 0 + 3 * 2) / 4
    assert sim.server.bank.flat().tolist() == [[1.5, 1.5]]
    assert sim.server.count.tolist() == [20]  # integers: the largest


def test_bytes_up_count_models_summaries_and_numbers_apart() -> None:
    class Talkative(Algorithm):
        name = "talkative"

        def local_update(self, site: Site) -> dict[str, Any]:
            return {"head": site.theta["head"], "one": torch.zeros(site.k), "table": torch.zeros(site.k, 2, 3)}

    sim = simulation(classified(), Talkative(), LINEAR, rounds=2)
    reports = run(sim)
    d = 4 * 3 + 3
    assert bytes_of(sim, "up") == [2 * d * DOUBLE] * 4
    assert bytes_of(sim, "up", "meta") == [2 * 4] * 4
    assert bytes_of(sim, "up", "summary") == [2 * 24] * 4
    assert {row["kind"]: row["bytes"] for row in reports[1].ledger} == {
        "model": 4 * d * DOUBLE, "meta": 4 * 4, "summary": 4 * 24,
    }  # fmt: skip


def test_clients_cannot_change_what_the_server_sent() -> None:
    """A method's own loop starts from the very rows that arrive; with one client a call, they are the server's."""

    class Careless(Posting):
        def parcel(self, server: Server, cohort: Tensor) -> dict[str, Any]:
            return {"w": broadcast(server.bank[0]), "own": server.bank}

        def receive(self, site: Site, w: Models, own: Models) -> dict[str, Any]:
            theta = site.theta
            for step in site.steps(epochs=2):
                w = step.update(w, site.gradient(w, step))
                own = step.update(own, site.gradient(own, step))
                theta = step.update(theta, site.gradient(theta, step))
            return {"got": w.flat()}

    for chunk in (1, 3):
        sim = simulation(THREE, Careless(), LOCATION, rounds=2, chunk=chunk)
        sim.server.bank = models_like(sim, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
        run(sim)
        assert sim.server.bank.flat().tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
        assert sim.server.got.unique(dim=0).shape[0] == 3
        assert not sim.report_models().flat().any()


def test_errors_of_client_code_say_which_method_and_round() -> None:
    from coterie.errors import CoterieError

    with pytest.raises(CoterieError, match=r"^ditto, round 1: client client-0: a proximal strength of 20 times"):
        run(simulation(classified(), "ditto", options={"lambda": 20.0}))


def test_models_without_influence_stay() -> None:
    sim = simulation(classified(classes=3), "fedavg", BLIND)
    run(sim)
    assert not sim.server.w.flat().any()
