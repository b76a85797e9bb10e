"""Client apps that start at once: forked from a process that has imported everything, instead of started anew.

Flower starts a process for every message, which spends seconds on importing torch. Here one process does that once and
waits; Flower's SuperExec, its child, tells it what to start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import IO, Any, NoReturn

from coterie.errors import CoterieError

LATER = ("pandas", "scipy.io", "sklearn.datasets")
"""What sources of data import only when they are used, though it takes seconds."""


def keep_warm(arguments: Sequence[str]) -> int:
    """Run ``flower-superexec`` with these arguments until it ends; its exit code.

    Raises
    ------
    CoterieError
        Flower is not installed, or this system cannot fork processes.
    """
    if not hasattr(os, "fork"):
        raise CoterieError("this system cannot keep client apps warm: start the SuperNode without --warm")
    _import_everything()
    reading, writing = os.pipe()
    superexec = os.fork()
    if superexec == 0:
        os.close(reading)
        _superexec([*arguments, "--parent-pid", str(os.getppid())], writing)
    os.close(writing)

    def pass_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(superexec, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    with os.fdopen(reading) as lines:
        for line in lines:
            if os.fork() == 0:
                lines.close()
                _client_app(json.loads(line))
            _reap(superexec)
    _, status = os.waitpid(superexec, 0)
    return os.waitstatus_to_exitcode(status)


def _import_everything() -> None:
    """What a client app imports, without starting any thread."""
    try:
        import flwr.supercore.cli.flower_superexec
        import flwr.supernode.cli.flwr_clientapp  # noqa: F401
    except ImportError as error:
        raise CoterieError("real sites need the package Flower: pip install 'coterie[flower]'.") from error
    from importlib import import_module

    from coterie.contract import available_algorithms

    import_module("coterie.deploy.app")
    available_algorithms()
    for module in LATER:
        import_module(module)


def _reap(superexec: int) -> None:
    """Forget client apps that have ended."""
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid != superexec:
            os.waitpid(found.si_pid, 0)


def _superexec(arguments: Sequence[str], writing: int) -> NoReturn:
    """Flower's SuperExec, which hands client apps over instead of starting them."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec import run_superexec as module
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    lines: IO[str] = os.fdopen(writing, "w", buffering=1)

    class Handing(SubprocessExecutor):
        def launch(self, spec: Any) -> Any:
            if spec.task_type != TaskType.CLIENT_APP:
                return super().launch(spec)
            words = ["flwr-clientapp", "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
            if spec.insecure:
                words.append("--insecure")
            elif spec.root_certificates_path is not None:
                words += ["--root-certificates", spec.root_certificates_path]
            if spec.parent_pid is not None:
                words += ["--parent-pid", str(spec.parent_pid)]
            lines.write(json.dumps(words) + "\n")
            return LaunchResult.accepted()

    setattr(module, "get_executor", lambda *wanted, **more: Handing())  # noqa: B010
    sys.argv = ["flower-superexec", *arguments]
    _end(flower_superexec)


def _client_app(words: Sequence[str]) -> NoReturn:
    """One client app, for one message."""
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = list(words)
    _end(flwr_clientapp)


def _end(main: Any) -> NoReturn:
    """Run a command's main function; what the parent would do at its end is not done."""
    code = 1
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
