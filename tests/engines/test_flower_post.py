"""Who is there, as Flower's list of nodes and their answers tell; no process is needed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from coterie.engines import flower
from coterie.engines.flower import FlowerPost, records_of
from coterie.engines.wire import Packet, packed

NAMES = ("a", "b", "c")


class Nodes:
    """Nodes 0, 1, ... are the clients in order, and answer after so many looks."""

    def __init__(self, **delays: int) -> None:
        self.delays = {NAMES.index(name): delay for name, delay in delays.items()}
        self.waiting: dict[str, tuple[int, Message]] = {}
        self.hellos: list[int] = []
        self.failing: set[int] = set()

    def get_node_ids(self) -> list[int]:
        return list(self.delays)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        keys = []
        for message in messages:
            node = message.metadata.dst_node_id
            key = f"m{len(self.hellos)}"
            message.metadata.__dict__["_message_id"] = key
            self.waiting[key] = (self.delays[node], message)
            self.hellos.append(node)
            keys.append(key)
        return keys

    def pull_messages(self, keys: Iterable[str]) -> list[Message]:
        found = []
        for key in list(keys):
            left, message = self.waiting[key]
            self.waiting[key] = (left - 1, message)
            if left == 0:
                name = NAMES[message.metadata.dst_node_id]
                failed = message.metadata.dst_node_id in self.failing
                content = Error(2, "secret") if failed else records_of(packed({"client": name}))
                found.append(Message(content, reply_to=message))
        return found


def post(nodes: Nodes) -> FlowerPost:
    def met(node: int, tree: Mapping[str, Any]) -> str:
        return str(tree["client"])

    return FlowerPost(nodes, NAMES, packed({"hello": {}}), met)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(flower, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(flower, "NOTICE_SECONDS", 0.002)


def test_connected_sites_are_waited_for_though_a_quorum_is_there() -> None:
    """Or a run that goes on would leave out those whose answer comes a moment later."""
    assert post(Nodes(a=0, b=3, c=6)).wait(1, 60) == {"a", "b", "c"}


def test_sites_that_are_not_connected_are_not_waited_for() -> None:
    begin = time.monotonic()
    assert post(Nodes(a=0, c=2)).wait(2, 60) == {"a", "c"}
    assert time.monotonic() - begin < 10


def test_a_node_that_does_not_say_who_it_is_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "GREETING_SECONDS", 0.1)
    assert post(Nodes(a=0, b=10**9)).wait(1, 60) == {"a"}


def test_a_node_whose_answer_got_lost_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(a=10**9)
    its = post(nodes)
    assert its.wait(1, 0.05) == set()
    monkeypatch.setattr(flower, "HELLO_SECONDS", 0.1)
    nodes.delays[0] = 0
    assert its.wait(1, 60) == {"a"}
    assert nodes.hellos == [0, 0]


def test_a_site_that_was_not_let_in_is_asked_again_and_its_reason_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flower, "STRANGER_SECONDS", 0.02)
    monkeypatch.setattr(flower.logger, "propagate", True)
    nodes = Nodes(a=0)
    nodes.failing = {0}
    its = post(nodes)
    assert its.wait(1, 0.5) == set()
    assert len(nodes.hellos) > 1
    assert len(caplog.records) == 1
    nodes.failing = set()
    assert its.wait(1, 60) == {"a"}


def test_a_node_that_is_none_of_the_sites_is_left_alone_once_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "STRANGER_SECONDS", 0.0)
    nodes = Nodes(a=0, b=0, c=0)
    nodes.failing = {1}
    its = FlowerPost(nodes, ("a", "c"), packed({"hello": {}}), lambda node, tree: str(tree["client"]))  # type: ignore[arg-type]
    its.wait(2, 60)
    asked = len(nodes.hellos)
    for _ in range(5):
        time.sleep(0.003)
        assert its.reachable() == {"a", "c"}
    assert len(nodes.hellos) == asked


def test_answers_come_with_their_names_and_each_is_told_once() -> None:
    nodes = Nodes(a=0, b=1, c=2)
    its = post(nodes)
    its.wait(3, 60)
    told: list[tuple[list[str], int]] = []
    its.watch = lambda title, answered, asked: told.append((list(answered), asked))
    nodes.delays = {0: 1, 1: 10**9, 2: 0}
    nodes.failing = {2}
    answers = dict(its.exchange({name: packed({"x": 1}) for name in NAMES}, 0.5, "title"))
    assert answers.keys() == {"a", "c"}
    assert isinstance(answers["a"], Packet)
    assert answers["a"].tree() == {"client": "a"}
    assert answers["c"] == "its client app failed; its log has the traceback"
    assert told == [([], 3), (["a"], 3)]
