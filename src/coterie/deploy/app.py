"""The two apps that a federation's ``pyproject.toml`` names: Flower runs them at the server and at the sites."""

from coterie.deploy.serving import serve
from coterie.deploy.siteside import answer
from coterie.engines import flower

__all__ = ["client_app", "server_app"]

server_app = flower.server_app(serve)
client_app = flower.client_app(answer)
