"""A federation of real processes, with TLS and keys, and a Flower app that only asks the sites who they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from coterie.config import parse_config
from coterie.deploy.certificates import server_identity
from coterie.deploy.processes import Deployment, free_ports
from coterie.deploy.writing import Plan, write_federation
from coterie.errors import CoterieError

EXPERIMENT = {
    "federation": {"source": "digits", "partition": {"rule": "iid", "clients": 3}},
    "algorithms": ["local"],
    "rounds": 1,
}


def state(pid: int) -> str:
    """``R`` and ``S`` for a process that runs or sleeps, ``T`` for a stopped one, ``Z`` for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def alive(pids: list[int]) -> list[int]:
    """Which of these processes have not ended."""
    return [pid for pid in pids if state(pid) != "Z"]


def sleeping(pids: list[int]) -> set[str]:
    """For how many seconds those of these processes sleep that are `sleep`."""
    commands = [Path(f"/proc/{pid}/cmdline") for pid in pids]
    words = [_read(command).decode().split("\0") for command in commands]
    return {word[1] for word in words if word[0] == "sleep"}


def written(folder: Path, sites: list[str]) -> Path:
    """A federation whose app is `echo_app`."""
    write_federation(folder, Plan(parse_config(EXPERIMENT), sites, port=free_ports(len(sites) + 1)))
    shutil.copy(Path(__file__).parent / "echo_app.py", folder / "app" / "echo_app.py")
    project = folder / "app" / "pyproject.toml"
    project.write_text(project.read_text().replace("coterie.deploy.app:", "echo_app:"))
    return folder


def impatient(script: str) -> str:
    """What keeps a process of its own alive: a stand-in for a server that takes long to end."""
    return f"#!/usr/bin/env bash\ntrap '' TERM\n{script}\n"


def test_stopping_ends_processes_that_ignore_it_and_those_of_another_session(tmp_path: Path) -> None:
    write_federation(tmp_path / "f", Plan(parse_config(EXPERIMENT), ["a"]))
    (tmp_path / "f" / "sites" / "a" / "start.sh").write_text(impatient("setsid sleep 300 &\nsleep 301 &\nsleep 302"))
    for how in ("stop", "kill"):
        with Deployment(tmp_path / "f", grace=0.5) as deployment:
            deployment.start_site("a")
            end = time.monotonic() + 10
            pids = deployment.processes("a")
            while sleeping(pids) < {"300", "301", "302"} and time.monotonic() < end:
                time.sleep(0.05)  # a child that is born still has the script's command line
                pids = deployment.processes("a")
            assert (len(pids), sleeping(pids)) == (4, {"300", "301", "302"})
            with pytest.raises(CoterieError, match="a runs already"):
                deployment.start_site("a")
            assert deployment.kill_part("a", "sleep 301") == 1
            assert len(alive(pids)) == 3
            deployment.pause_site("a")
            while (states := {state(pid) for pid in alive(pids)}) != {"T"} and time.monotonic() < end:
                time.sleep(0.01)
            assert states == {"T"}
            if how == "kill":
                deployment.kill_site("a")
                assert alive(pids) == []
        assert alive(pids) == []


def test_no_port_is_given_out_twice() -> None:
    firsts = sorted(free_ports(3) for _ in range(5))
    assert all(second - first >= 3 for first, second in pairwise(firsts))


def test_a_server_that_ends_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    write_federation(tmp_path / "f", Plan(parse_config(EXPERIMENT), ["a"], port=free_ports(2)))
    (tmp_path / "f" / "server" / "start.sh").write_text("exit 3\n")
    with Deployment(tmp_path / "f") as deployment, pytest.raises(CoterieError, match=r"code 3: see .*server\.log"):
        deployment.start_server()


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    write_federation(tmp_path / "f", Plan(parse_config(EXPERIMENT), ["a"]))
    (tmp_path / "f" / "server" / "run.sh").write_text("sleep 300\n")
    with Deployment(tmp_path / "f") as deployment:
        deployment.start_run()
        pids = deployment.processes("run")
        with pytest.raises(CoterieError, match="more than 1 seconds"):
            deployment.wait_run(timeout=1)
        assert alive(pids) == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_federation_of_real_processes(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    folder = written(tmp_path / "f", ["a", "b", "careful", "stranger"])
    another, _ = server_identity("127.0.0.1")
    (folder / "sites" / "careful" / "ca.crt").write_bytes(another.public)
    with Deployment(folder) as deployment:
        deployment.start_server()
        deployment.register(["a", "b", "careful"])
        for name in deployment.sites:
            deployment.start_site(name)
        deployment.wait_online(["a", "b"])
        end = time.monotonic() + 60
        while "CERTIFICATE_VERIFY_FAILED" not in deployment.log("careful").read_text() and time.monotonic() < end:
            time.sleep(0.2)
        assert "CERTIFICATE_VERIFY_FAILED" in deployment.log("careful").read_text()  # it does not trust the server
        assert deployment.online() == {"a", "b"}  # nobody comes in without a registered key
        with pytest.raises(CoterieError, match="a was not registered; is it already"):
            deployment.register(["a"])

        lines: list[str] = []
        assert deployment.run(tmp_path / "out", timeout=120, watch=lines.append) == "finished:completed"
        assert any("Successfully started run" in line for line in lines)
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary["sites"] == {name: str(folder / "sites" / name / "site.yaml") for name in ("a", "b")}
        assert summary["experiment"] == str(folder / "server" / "experiment.yaml")

        before = deployment.processes("a")
        deployment.kill_site("a")
        assert alive(before) == []
        before = deployment.processes("server")
        deployment.kill_superlink()
        assert len(alive(before)) == len(before) - 1
        time.sleep(1)
        deployment.wait_for_server()  # its script has started it again
        everything = [pid for name in ("server", "b", "stranger") for pid in deployment.processes(name)]
        assert len(everything) > 6
    assert alive(everything) == []


@pytest.mark.full
def test_ctrl_c_ends_the_demonstration(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from multiprocessing import get_context

    child = get_context("spawn").Process(target=_demonstrate, args=(tmp_path / "f",))
    child.start()
    assert child.pid is not None
    log = tmp_path / "f" / "logs" / "server.log"
    end = time.monotonic() + 120
    while not log.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert log.exists()
    time.sleep(1)
    os.kill(child.pid, signal.SIGINT)
    child.join(90)
    assert child.exitcode == 1  # KeyboardInterrupt
    named = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"server.crt" in _read(path)]
    assert str(tmp_path / "f" / "server") not in [_folder(path.parent) for path in named]


def _demonstrate(folder: Path) -> None:
    from coterie.deploy.demo import demonstrate

    demonstrate(parse_config(EXPERIMENT), folder)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _folder(process: Path) -> str:
    try:
        return os.readlink(process / "cwd")
    except OSError:  # it is gone
        return ""
