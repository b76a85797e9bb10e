"""The processes of a federation on this machine: its server and its sites, started by their own scripts.

For the demonstration and for tests that kill some of them. Every process that is started here is ended here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from coterie.errors import CoterieError

CONNECTION = "coterie"
"""Name of the connection in the server's own Flower configuration."""
KILL_SECONDS = 10.0
"""How long killed processes are waited for."""
MARK = "COTERIE_PROCESS"
"""Environment variable by which a process is known that has lost its parent."""


class Deployment:
    """A federation that `coterie deploy init` has written, on this machine.

    Use it as a context manager, or call `stop`: it ends whatever it has started. Each process writes to a file of its
    own in the folder ``logs``.

    Parameters
    ----------
    folder : Path
        The folder of the federation.
    environment : Mapping[str, str], optional
        More environment variables for all processes.
    grace : float
        Seconds that processes have to end by themselves before `stop` kills them.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None, grace: float = 8.0) -> None:
        self.grace = grace
        self.folder = folder.absolute()
        self.server = self.folder / "server"
        self.logs = self.folder / "logs"
        self.logs.mkdir(exist_ok=True)
        self._mark = uuid.uuid4().hex
        self._extra = dict(environment or {})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        if shutil.which("flower-superlink", path=self._environment("")["PATH"]) is None:
            raise CoterieError("coterie deploy needs Flower: pip install 'coterie[flower]'.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def sites(self) -> list[str]:
        """Names of the sites, in alphabetical order."""
        return sorted(path.name for path in (self.folder / "sites").iterdir() if path.is_dir())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the SuperLink."""
        config = tomllib.loads((self.server / "flwr" / "config.toml").read_text(encoding="utf-8"))
        host, _, port = config["superlink"][CONNECTION]["address"].rpartition(":")
        return host, int(port)

    def start_server(self, *, timeout: float = 60.0) -> None:
        """Start SuperLink and SuperExec, and wait until the SuperLink listens."""
        self._start("server", ["bash", "start.sh"], self.server)
        self.wait_for_server(timeout=timeout)

    def wait_for_server(self, *, timeout: float = 60.0) -> None:
        """Wait until the SuperLink listens."""
        self._wait_for(lambda: _listens(self.address), "server", "does not listen", timeout)

    def register(self, names: Iterable[str] | None = None) -> None:
        """Admit sites by their public keys; left out, all."""
        keys = [] if names is None else [f"sites/{name}.pub" for name in names]
        self._call("register.sh", ["bash", "register.sh", *keys], timeout=60.0 * max(1, len(keys)))

    def start_site(self, name: str, *, warm: bool = False) -> None:
        """Start a site; `wait_online` waits until the server knows it."""
        self._start(name, ["bash", "start.sh", *(["--warm"] if warm else [])], self.folder / "sites" / name)

    def wait_online(self, names: Iterable[str] | None = None, *, timeout: float = 120.0) -> None:
        """Wait until these sites (left out, all) are connected."""
        wanted = set(self.sites if names is None else names)

        def all_there() -> bool:
            for name in wanted & set(self._running):
                self._check_alive(name)
            return wanted <= self.online()

        self._wait_for(all_there, "server", f"does not see {', '.join(sorted(wanted))}", timeout, pause=1.0)

    def online(self) -> set[str]:
        """Names of the sites that are connected."""
        listed, nodes = _object(self.flwr("supernode", "list", CONNECTION, "--format", "json")), self._nodes()
        online = [str(node["node-id"]) for node in listed["nodes"] if node["status"] == "online"]
        return {nodes[node] for node in online if node in nodes}

    def run(
        self, output: Path | None = None, *, timeout: float = 600.0, watch: Callable[[str], None] | None = None
    ) -> str:
        """Train, and wait for the end; ``run.sh`` writes its log to ``logs/run.log``.

        Parameters
        ----------
        output : Path, optional
            The run directory; left out, ``logs/../server/runs/<time>``.
        timeout : float
            Seconds after which it is ended.
        watch : callable, optional
            Is given each line of the log as it comes.

        Returns
        -------
        str
            What became of it: ``finished:completed``, ``finished:failed``, ``finished:stopped``, or ``not started``.
        """
        self.start_run(output)
        return self.wait_run(timeout=timeout, watch=watch)

    def start_run(self, output: Path | None = None, *, experiment: Path | None = None, name: str = "run") -> None:
        """Start training and return at once; `wait_run` waits for its end.

        Several runs, each under a ``name`` of its own, can go on at a time.
        """
        words = ["" if path is None else str(path.absolute()) for path in (output, experiment)]
        self._start(name, ["bash", "run.sh", *words], self.server, fresh=True)

    def wait_run(self, name: str = "run", *, timeout: float = 600.0, watch: Callable[[str], None] | None = None) -> str:
        """Wait for the end of what `start_run` has started; see `run`."""
        process, end = self._running[name], time.monotonic() + timeout
        with self.log(name).open(encoding="utf-8", errors="replace") as log:
            while True:
                code = process.poll()
                for line in log if watch is not None else ():
                    watch(line.rstrip())  # type: ignore[misc]
                if code is not None:
                    break
                if time.monotonic() > end:
                    self.kill(name)
                    raise CoterieError(f"The run took more than {timeout:.0f} seconds: see {self.log(name)}.")
                time.sleep(0.2)
        self._running.pop(name, None)
        return self.run_status(name)

    def run_status(self, name: str = "run") -> str:
        """What has become of the last run that was started here under this name; see `run`."""
        started = re.search(r"started run (\d+)", self.log(name).read_text(encoding="utf-8", errors="replace"))
        if started is None:
            return "not started"
        listed = _object(self.flwr("list", CONNECTION, "--run-id", started[1], "--format", "json"))
        return str(listed["runs"][0]["status"])

    def log(self, name: str) -> Path:
        """The log file of ``server``, ``run`` or a site."""
        return self.logs / f"{name}.log"

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a log."""
        with suppress(OSError):
            return "\n".join(self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""

    def processes(self, name: str) -> list[int]:
        """The ids of all processes of ``server``, ``run`` or a site."""
        process = self._running.get(name)
        return sorted(_family([] if process is None else [process.pid], f"{self._mark}:{name}", _parents()))

    def kill(self, name: str) -> None:
        """End every process of ``server``, ``run`` or a site at once (SIGKILL), its script included."""
        process = self._running.pop(name, None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGSTOP)  # or its script would start another one meanwhile
        self._end({} if process is None else {process.pid: _born(process.pid)}, name)
        if process is not None:
            process.wait()

    def _end(self, family: dict[int, str], name: str) -> None:
        """Kill processes, given with when they began, and whatever belongs to them, until none is left."""
        end = time.monotonic() + KILL_SECONDS
        while time.monotonic() < end:
            parents = _parents()
            left = {pid for pid, born in family.items() if pid in parents and _born(pid) == born}
            left |= _family(left, f"{self._mark}:{name}", parents)
            if not left:
                return
            family |= {pid: _born(pid) for pid in left}
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def kill_site(self, name: str) -> None:
        """End every process of a site at once (SIGKILL); `start_site` brings it back."""
        self.kill(name)

    def kill_superlink(self) -> None:
        """End the SuperLink alone at once (SIGKILL); its script starts it again, on what its database holds."""
        self.kill_part("server", "flower-superlink --host")

    def kill_part(self, name: str, command: str) -> int:
        """End those processes of ``server``, ``run`` or a site whose command line has this text; how many these were.

        ``flwr-serverapp`` at the server is the run itself, ``flwr-clientapp`` at a site what answers just now.
        """
        parts = {pid: _born(pid) for pid in self.processes(name) if command in _command(pid)}
        end = time.monotonic() + KILL_SECONDS
        for pid in parts:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while time.monotonic() < end and any(pid in _parents() and _born(pid) == born for pid, born in parts.items()):
            time.sleep(0.05)
        return len(parts)

    def pause_site(self, name: str) -> None:
        """Stop the clock of a site (SIGSTOP), as a machine that hangs; `continue_site` lets it go on."""
        self._signal(name, signal.SIGSTOP)

    def continue_site(self, name: str) -> None:
        """Let a paused site go on."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        for pid in self.processes(name):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """End everything that was started here: the sites first, politely, then at once."""
        running = dict(self._running)  # somebody may wait for a run meanwhile, and forget it when it ends
        families = {name: {pid: _born(pid) for pid in self.processes(name)} for name in running}
        for name, process in running.items():
            self._signal(name, signal.SIGCONT)  # a paused process does not hear that it is to end
            with suppress(ProcessLookupError, PermissionError):
                process.terminate()
        end = time.monotonic() + self.grace
        for process in running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        for name, family in families.items():
            self._end(family, name)
            running[name].wait()
            self._running.pop(name, None)

    def flwr(self, *words: str, timeout: float = 60.0) -> str:
        """What a command of Flower prints, as the server's people call it.

        Raises
        ------
        CoterieError
            It failed; the message has its last line.
        """
        return self._call(f"flwr {' '.join(words[:2])}", ["flwr", *words], timeout=timeout)

    def _call(self, name: str, command: Sequence[str], *, timeout: float) -> str:
        """The output of a command that runs in the server's folder and soon ends."""
        try:
            done = subprocess.run(
                command,
                cwd=self.server,
                env=self._environment("call"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CoterieError(f"{name} did not end within {timeout:.0f} seconds.") from error
        if done.returncode:
            said = " ".join(re.sub(r"[│╭╮╰╯─]+", " ", done.stderr or done.stdout).split())
            raise CoterieError(f"{name} failed: {said or 'without a word'}")
        return done.stdout

    def _nodes(self) -> dict[str, str]:
        """The site that each of Flower's nodes is, by number."""
        with suppress(FileNotFoundError):
            lines = (self.server / "nodes.txt").read_text(encoding="utf-8").splitlines()
            return dict(line.split(" ", 1) for line in lines)
        return {}

    def _start(self, name: str, command: Sequence[str], folder: Path, *, fresh: bool = False) -> None:
        if name in self._running and self._running[name].poll() is None:
            raise CoterieError(f"{name} runs already.")
        log: IO[bytes]
        with self.log(name).open("wb" if fresh else "ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                cwd=folder,
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self, name: str) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {
            **os.environ,
            "PATH": path,
            "FLWR_HOME": str(self.server / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PYTHONUNBUFFERED": "1",
            **self._extra,
            MARK: f"{self._mark}:{name}",
        }

    def _check_alive(self, name: str) -> None:
        if (code := self._running[name].poll()) is not None:
            raise CoterieError(f"{name} has ended with code {code}: see {self.log(name)}.")

    def _wait_for(
        self, ready: Callable[[], bool], name: str, otherwise: str, timeout: float, pause: float = 0.2
    ) -> None:
        end = time.monotonic() + timeout
        while not ready():
            self._check_alive(name)
            if time.monotonic() > end:
                raise CoterieError(f"The {name} {otherwise} after {timeout:.0f} seconds: see {self.log(name)}.")
            time.sleep(pause)


def _object(text: str) -> dict[str, Any]:
    """The JSON object in what a command of Flower prints."""
    try:
        found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError as error:
        raise CoterieError(f"Flower has answered something else than JSON: {text.strip()[:200]}") from error
    if not found.get("success", True):
        raise CoterieError(f"Flower says: {' '.join(str(found.get('error-message')).split())}")
    return found


_given: set[int] = set()


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that are free on this machine now; none is given out twice.

    Processes that look at the same time begin far from one another. Higher ports are those that systems give to
    outgoing connections, which may take one before it is used.
    """
    for first in range(20000 + os.getpid() * 97 % 10000, 32768 - count, count):
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and all(_is_free(port) for port in ports):
            _given.update(ports)
            return first
    raise CoterieError(f"There are no {count} free ports in a row on this machine.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _listens(address: tuple[str, int]) -> bool:
    with suppress(OSError), socket.create_connection(address, timeout=1):
        return True
    return False


def _family(roots: Iterable[int], mark: str, parents: Mapping[int, int]) -> set[int]:
    """Processes with all that descend from them, and those that bear the mark."""
    found = {pid for pid in parents if pid in set(roots) or _mark_of(pid) == mark}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _parents() -> dict[int, int]:
    """The parent of every process that is no zombie."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False).stdout
        rows: list[Any] = [line.split()[:3] for line in listed.splitlines()]
        return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    found[int(entry.name)] = int(parent)
    return found


def _mark_of(pid: int) -> str:
    """The mark in a process's environment; empty where it cannot be read."""
    with suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(f"{MARK}=".encode()):
                return variable.decode(errors="replace").partition("=")[2]
    return ""


def _born(pid: int) -> str:
    """When a process began, in the system's own units; empty where that cannot be read."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _command(pid: int) -> str:
    """The command line of a process; empty where it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    listed = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
    return listed.stdout
