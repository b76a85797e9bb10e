"""The live view as a page of this machine: it asks for the state every few seconds."""

from __future__ import annotations

import errno
import json
import sys
import threading
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from coterie.errors import CoterieError
from coterie.reports.watching.watcher import Watcher

HERE = "127.0.0.1"
NAMES = frozenset({HERE, "localhost"})
"""What a browser of this machine calls it; a page from elsewhere whose name leads here is refused."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def serving(watcher: Watcher, port: int = 0) -> ThreadingHTTPServer:
    """A server for the page, on this machine alone; the caller lets it run, and closes it.

    Parameters
    ----------
    watcher : Watcher
        What the page shows.
    port : int
        0 takes one that is free.

    Raises
    ------
    CoterieError
        The port is taken, or not allowed.
    """
    lock = threading.Lock()

    def state() -> bytes:
        with lock:
            seen = watcher.look()
        return json.dumps(seen.as_dict(), allow_nan=False).encode()

    try:
        return _Server((HERE, port), _handler(state))
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "is in use" if taken else f"cannot be used ({error.strerror or error})"
        raise CoterieError(f"Port {port} of this machine {reason}: give another with --port.") from error
    except OverflowError as error:
        raise CoterieError(f"There is no port {port}: give one between 1 and 65535 with --port.") from error


class _Server(ThreadingHTTPServer):
    """One thread a request; a browser that leaves early is no error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(state: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    """What answers the requests for the page, its script, plotly and ``state``."""
    contents: dict[str, tuple[str, Callable[[], bytes]]] = {
        "/": ("text/html; charset=utf-8", lambda: _resource("watch.html")),
        "/watch.js": ("text/javascript; charset=utf-8", lambda: _resource("watch.js")),
        "/plotly.js": ("text/javascript; charset=utf-8", _plotly),
        "/state.json": ("application/json", state),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in NAMES:
                self.send_error(HTTPStatus.FORBIDDEN, f"Ask for {HERE} or localhost")
            elif (path := self.path.partition("?")[0]) not in contents:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                kind, content = contents[path]
                self._answer(kind, content(), lasting=path == "/plotly.js")

        def _answer(self, kind: str, body: bytes, *, lasting: bool) -> None:
            self.send_response(HTTPStatus.OK)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Cache-Control", "max-age=86400" if lasting else "no-store")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a line every few seconds says nothing."""

    return Handler


def _resource(name: str) -> bytes:
    return (files(__package__) / name).read_bytes()


@cache
def _plotly() -> bytes:
    """The script of the installed plotly."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).encode()
