"""A Flower app that asks every site who it is, and writes down what they answer."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    waiting = set(grid.push_messages([Message(RecordDict(), node, "query") for node in nodes]))
    names = {}
    while waiting:
        for answer in grid.pull_messages(waiting):
            waiting.discard(answer.metadata.reply_to_message_id)
            names[answer.content["site"]["client-id"]] = answer.content["site"]["site-file"]
        time.sleep(0.5)
    output = Path(context.run_config["output"])
    output.mkdir(parents=True)
    (output / "summary.json").write_text(json.dumps({"sites": names, "experiment": context.run_config["experiment"]}))


@client_app.query()
def query(message, context):
    keys = ("client-id", "site-file")
    return Message(
        RecordDict({"site": ConfigRecord({key: context.node_config[key] for key in keys})}), reply_to=message
    )
