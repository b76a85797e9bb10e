"""The client of the Flower contestant, in a module of its own, which Ray's actors import."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.peers.adapters.loop import train
from benchmarks.peers.work import Task, read


@lru_cache
def task(path: Path) -> Task:
    """The task; an actor reads it once, not for every client."""
    return read(path)


def client(path: Path) -> ClientApp:
    """A client that trains the model it is sent on its own part of the data."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        given = task(path)
        number = int(context.node_config["partition-id"])
        module = given.module()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(module, given.inputs[number], given.targets[number], given.work)
        content = RecordDict(
            {
                "arrays": ArrayRecord(module.state_dict()),
                "metrics": MetricRecord({"num-examples": given.work.examples}),
            }
        )
        return Message(content=content, reply_to=message)

    return app
