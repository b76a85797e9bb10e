"""The page is for browsers of this machine, and holds nothing that a client's name could turn into a program."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from importlib.resources import files
from pathlib import Path

import pytest
from watched import ROUNDS, written

from coterie.errors import CoterieError
from coterie.reports.watching import Watcher, serving
from coterie.runs import History, RunDirectory

LOCAL, FEDORA = ("local", ""), ("fedora", "released")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = written(tmp_path_factory.mktemp("page") / "run", {(*LOCAL, 0): 4, (*FEDORA, 0): 3}, finished=True)
    history = History.read(run)
    history.add_failure(*FEDORA, 0, 1, "<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>")
    history.write(run)
    return run


@pytest.fixture(scope="module")
def port(run: RunDirectory) -> Iterator[int]:
    with serving(Watcher(run.path)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(timeout=10)
        assert not thread.is_alive()


def get(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_state_is_the_snapshot(port: int, run: RunDirectory) -> None:
    answer, body = get(port, "/state.json")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    told = json.loads(body)
    own = Watcher(run.path).look().as_dict()
    assert told.pop("seconds_since_write") >= own.pop("seconds_since_write") - 60
    assert told == json.loads(json.dumps(own))
    assert told["rounds"] == ROUNDS
    assert told["failures"][0]["clients"] == ["<script>alert(1)</script>"]


@pytest.mark.parametrize("path", ["/", "/watch.js", "/plotly.js"])
def test_everything_the_page_needs_comes_from_here(port: int, path: str) -> None:
    answer, body = get(port, path)
    assert answer.status == 200
    assert "script-src 'self';" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert len(body) == int(answer.headers["Content-Length"]) > 1000
    assert path == "/plotly.js" or b"://" not in body.replace(b"http://www.w3.org/2000/svg", b"")


def test_names_are_only_ever_text() -> None:
    folder = files("coterie.reports.watching")
    page, script = ((folder / name).read_text(encoding="utf-8") for name in ("watch.html", "watch.js"))
    assert "textContent" in script
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert way not in script
    assert page.count("<script") == page.count("<script src=")


@pytest.mark.parametrize("path", ["/state", "/../config.yaml", "/config.yaml", "//config.yaml", "/state.json/"])
def test_there_is_nothing_else(port: int, path: str) -> None:
    assert get(port, path)[0].status == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "localhost.evil"])
@pytest.mark.parametrize("path", ["/", "/state.json"])
def test_a_page_from_elsewhere_is_refused(port: int, host: str, path: str) -> None:
    answer, body = get(port, path, host)
    assert answer.status == 403
    assert b"digits" not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1:8642"])
def test_a_tunnel_is_not(port: int, host: str) -> None:
    assert get(port, "/state.json", host)[0].status == 200


def test_nothing_can_be_sent(port: int) -> None:
    assert get(port, "/state.json", method="POST")[0].status == 501


def test_other_machines_cannot_reach_it(run: RunDirectory) -> None:
    with serving(Watcher(run.path)) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_one_sentence(run: RunDirectory) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CoterieError, match=r"^Port \d+ of this machine is in use: give another with --port\.$"):
            serving(Watcher(run.path), taken.getsockname()[1])
    with pytest.raises(CoterieError, match="no port 70000"):
        serving(Watcher(run.path), 70_000)


def test_requests_leave_no_line(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    get(port, "/")
    get(port, "/nothing")
    assert capfd.readouterr() == ("", "")


def test_a_browser_that_leaves_early_is_no_error(port: int, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", port)) as early:
        early.sendall(b"GET /plotly.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        early.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # resets the connection
    assert get(port, "/")[0].status == 200
    assert capfd.readouterr() == ("", "")
