"""Flower carries the messages: with ``flower_warm`` the only file that knows the package flwr."""

from __future__ import annotations

import io
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_magic
from numpy.typing import NDArray

from coterie.engines.wire import Malformed, Packet
from coterie.errors import CoterieError, SitesLost

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid as Grid  # for those who are handed one
    from flwr.serverapp import ServerApp
except ImportError as error:
    raise CoterieError("real sites need the package Flower: pip install 'coterie[flower]'.") from error

POLL_SECONDS = 0.5
"""Between two looks for answers. An answer that lies at the server when its site leaves is lost."""

NOTICE_SECONDS = 5.0
"""Between two looks for sites that have come."""

HELLO_SECONDS = 600.0
"""Within which a node must say who it is, for which it looks at its data; then it is asked again."""

GREETING_SECONDS = 60.0
"""For so long after it was asked a node is waited for, where the other sites could begin without it."""

STRANGER_SECONDS = 60.0
"""After so long a node that was not let in is asked again while sites are missing: it may have been mended."""

TTL_MARGIN = 1.1
"""A message is good for a little longer than its answer is waited for, and no site works at one that nobody wants."""

ERRORS = {
    2: "its client app failed; its log has the traceback",
    3: "its answer was lost on the way",
    4: "its answer was lost on the way",
    5: "it left before it had answered",
    8: "its client app ended without an answer",
}
"""By Flower's codes. Flower's own sentences may repeat what an exception said, so they are not passed on."""

MOST_AXES = 64
"""Of an array, as many as numpy's have."""

OVER = (401, 403)
"""By HTTP's codes: the SuperLink knows the run no longer, since it was stopped."""

STOPPED = "the run was stopped; it can be continued: bash run.sh with the same run directory"

logger = logging.getLogger("coterie.server")


class FlowerPost:
    """Carries messages to SuperNodes and back, a `coterie.engines.remote.Post`.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes of a run.
    names : sequence of str
        The clients.
    hello : Packet
        What a node is asked for that has just come: who it is.
    met : callable
        Told the node's number and its answer: the client's name; ``CoterieError`` where the node is none of them.
    watch : callable, optional
        Told the title of an exchange, who has answered and how many were asked.
    """

    def __init__(
        self,
        grid: Grid,
        names: Sequence[str],
        hello: Packet,
        met: Callable[[int, Mapping[str, Any]], str],
        watch: Callable[[str, Sequence[str], int], None] | None = None,
    ) -> None:
        self.grid, self.names, self.hello, self.met = grid, tuple(names), hello, met
        self.watch = watch or (lambda title, answered, asked: None)
        self._node: dict[str, int] = {}
        self._here: frozenset[int] = frozenset()
        self._asked: dict[str, tuple[int, float]] = {}  # by message: the node that was asked who it is, and when
        self._strangers: dict[int, tuple[str, float]] = {}  # by node: why it was not let in, and when
        self._noticed = 0.0

    # --- who is there --------------------------------------------------------------------------------------------
    def reachable(self) -> frozenset[str]:
        """The clients that are there now."""
        self._notice()
        return frozenset(name for name, node in self._node.items() if node in self._here)

    def wait(self, count: int, seconds: float) -> frozenset[str]:
        """The clients that are there, as soon as they are so many, or when the time is over.

        Nodes that are there already, but have not yet said who they are, may be some of them.
        """
        end, said = time.monotonic() + seconds, False
        while (len(here := self.reachable()) < count or self._greeting()) and time.monotonic() < end:
            if not said and len(here) < count:
                logger.info("waiting for sites: %d of %d are there", len(here), len(self.names))
                said = True
            time.sleep(POLL_SECONDS)
        return here

    def _greeting(self) -> bool:
        """Whether clients are missing, and nodes were just asked whether they are one."""
        newest = max((when for _, when in self._asked.values()), default=float("-inf"))
        return len(self._node) < len(self.names) and time.monotonic() - newest < GREETING_SECONDS

    def _notice(self) -> None:
        """Look who is there, ask nodes that have come who they are, and read what they answered."""
        if time.monotonic() - self._noticed >= NOTICE_SECONDS:
            self._noticed = time.monotonic()
            nodes = self._patiently(lambda: frozenset(self.grid.get_node_ids()))
            if nodes is not None:
                self._strangers = {node: why for node, why in self._strangers.items() if node in nodes}
                self._here = nodes
            now = time.monotonic()
            self._asked = {key: asked for key, asked in self._asked.items() if now - asked[1] < HELLO_SECONDS}
            missing = len(self._node) < len(self.names)
            recent = {node for node, (_, when) in self._strangers.items() if now - when < STRANGER_SECONDS}
            strangers = recent if missing else self._strangers.keys()
            known = {*self._node.values(), *(node for node, _ in self._asked.values()), *strangers}
            new = sorted(self._here - known)
            if new:
                identifiers = self._push([(node, "query", self.hello) for node in new], HELLO_SECONDS, "hello")
                self._asked |= {key: (node, now) for key, node in zip(identifiers, new, strict=True) if key is not None}
        if self._asked:
            for message in self._pull(self._asked):
                self._meet(self._asked.pop(message.metadata.reply_to_message_id)[0], message)

    def _meet(self, node: int, message: Message) -> None:
        try:
            if message.has_error():
                raise CoterieError(ERRORS.get(message.error.code, f"Flower's error {message.error.code}"))
            name = self.met(node, packet_of(message.content).tree())
        except CoterieError as error:
            if self._strangers.get(node, ("", 0))[0] != str(error):  # else it was told before
                logger.warning("a site was not let in: %s", error)
            self._strangers[node] = str(error), time.monotonic()
            return
        self._strangers.pop(node, None)
        logger.info("%s is there", name)
        self._node[name] = node

    # --- exchanges -----------------------------------------------------------------------------------------------
    def exchange(self, packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        """Send to each client its message, and give its answer, or why there is none, as soon as it comes."""
        end = time.monotonic() + seconds
        wanted = [(name, packet) for name, packet in packets.items() if name in self._node]
        identifiers = self._push([(self._node[name], "train", packet) for name, packet in wanted], seconds, title)
        waiting = {}
        for key, (name, _) in zip(identifiers, wanted, strict=True):
            if key is None:
                yield name, "the message to it could not be sent"
            else:
                waiting[key] = name
        answered: list[str] = []
        self.watch(title, answered, len(packets))
        while waiting and time.monotonic() < end:
            for message in self._pull(waiting):
                name = waiting.pop(message.metadata.reply_to_message_id)
                try:
                    if message.has_error():
                        yield name, ERRORS.get(message.error.code, f"Flower's error {message.error.code}")
                    else:
                        yield name, packet_of(message.content)
                        answered.append(name)
                        self.watch(title, answered, len(packets))
                except Malformed as error:
                    yield name, str(error)
            if waiting:
                self._notice()
                time.sleep(POLL_SECONDS)

    def _push(self, letters: Sequence[tuple[int, str, Packet]], seconds: float, title: str) -> list[str | None]:
        """Send packets to nodes; the messages' identifiers, None for those that could not be sent."""
        if not letters:
            return []
        messages = [
            Message(records_of(packet), node, kind, ttl=seconds * TTL_MARGIN, group_id=title)
            for node, kind, packet in letters
        ]
        pushed = self._patiently(lambda: list(self.grid.push_messages(messages)), seconds) or []
        return [key or None for key in pushed] + [None] * (len(letters) - len(pushed))

    def _pull(self, identifiers: Iterable[str]) -> list[Message]:
        return self._patiently(lambda: list(self.grid.pull_messages(list(identifiers)))) or []

    def _patiently(self, call: Callable[[], Any], seconds: float = 0.0) -> Any:
        """What a call to the SuperLink gives, tried again for so long where it is away; None if it stays so."""
        end, said = time.monotonic() + seconds, False
        while True:
            try:
                return call()
            except Exception as error:  # whatever the carrier raises when there is no connection
                if getattr(getattr(error, "response", None), "status_code", None) in OVER:
                    raise SitesLost(STOPPED) from error  # no failure of the method that happens to be at work
                if not said:
                    logger.warning("the SuperLink does not answer (%s); trying again", type(error).__name__)
                    said = True
                if time.monotonic() >= end:
                    return None
                time.sleep(POLL_SECONDS)


# --- packets as Flower's records ---------------------------------------------------------------------------------


def records_of(packet: Packet) -> RecordDict:
    """A packet as Flower sends it: its arrays one after the other in a single one.

    Flower handles each array on its own, which costs the server as much as a whole small message.
    """
    text: dict[str, str] = {"text": packet.text}
    records = RecordDict()
    if packet.arrays:
        text["form"] = json.dumps([[array.dtype.str, list(array.shape)] for array in packet.arrays])
        flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in packet.arrays]
        records["arrays"] = ArrayRecord({"bytes": Array(np.concatenate(flat))})
    records["text"] = ConfigRecord(dict(text))
    return records


def packet_of(records: RecordDict) -> Packet:
    """What `records_of` made a record of; raises ``Malformed``."""
    try:
        text = records.config_records["text"]
        if not isinstance(text["text"], str):
            raise TypeError
        if "form" not in text:
            return Packet(text["text"])
        return Packet(
            text["text"], _apart(_bytes(records.array_records["arrays"]["bytes"]), json.loads(str(text["form"])))
        )
    except Exception as error:  # a site may send anything, and whatever that raises is its own failure alone
        raise Malformed("a message is not made of a text and arrays") from error


def _bytes(array: Array) -> NDArray[np.uint8]:
    """What `records_of` has put into an array, ``(bytes,)``, read-only.

    The numbers are not loaded by numpy, which makes room for as many as a header claims before it looks for them.
    """
    stream = io.BytesIO(array.data)
    if read_magic(stream) != (1, 0):
        raise ValueError("another version of numpy's format")
    shape, _, dtype = read_array_header_1_0(stream)
    if dtype != np.uint8 or shape != (len(array.data) - stream.tell(),):
        raise ValueError(f"{shape} of {dtype}")
    return np.frombuffer(array.data, dtype=np.uint8, offset=stream.tell())


def _apart(data: NDArray[np.uint8], form: Any) -> list[NDArray[Any]]:
    """Arrays of these types and shapes, which lie in ``data: (bytes,)`` one after the other."""
    arrays, place = [], 0
    for kind, shape in form:
        dtype = np.dtype(str(kind))
        if dtype.kind not in "biuf" or len(shape) > MOST_AXES or any(type(s) is not int or s < 0 for s in shape):
            raise ValueError(kind)
        end = place + dtype.itemsize * math.prod(shape)
        arrays.append(data[place:end].view(dtype).reshape(shape))
        place = end
    if place != len(data):
        raise ValueError("bytes are left")
    return arrays


# --- the apps ----------------------------------------------------------------------------------------------------

Answering = Callable[[Packet, Mapping[str, Any], Mapping[str, Any]], Packet]
"""From a message, the node's configuration and the run's, what goes back."""


def client_app(answer: Answering) -> ClientApp:
    """Flower's app of a site, which answers every message, whatever it is for."""
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        packet = answer(packet_of(message.content), context.node_config, context.run_config)
        return Message(records_of(packet), reply_to=message)

    app.train()(reply)
    app.query()(reply)
    return app


def server_app(serve: Callable[[Grid, Mapping[str, Any]], None]) -> ServerApp:
    """Flower's app of the server."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        try:
            serve(grid, context.run_config)
        except Exception:
            raise
        except BaseException as error:  # Ctrl-C, or Flower's sign that the run is over: Flower would wait for ever
            raise CoterieError(STOPPED) from error

    app.main()(main)
    logging.getLogger("flwr").addFilter(_without_traceback)
    return app


def _without_traceback(record: logging.LogRecord) -> bool:
    """Let Flower say of a sentence of ours no more than the sentence."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, CoterieError):
        record.msg, record.args, record.exc_info = "%s", (str(error),), None
    return True
