"""As much of Ray as the engine uses, in one process: whatever goes to an actor or comes from it is pickled on the way."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__("where it was raised")
        self.cause = cause


class Reference:
    """A result, or the error in place of it, as bytes."""

    def __init__(self, function: Callable[[], Any]) -> None:
        try:
            self.content = pickle.dumps(function())
            self.error: RayError | None = None
        except RayError as error:
            self.error = error
        except Exception as error:
            self.error = RayTaskError(error)

    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return pickle.loads(self.content)


class Handle:
    """An actor; one that was killed answers nothing."""

    def __init__(self, actor: Any) -> None:
        self._actor: Any = actor

    def kill(self) -> None:
        self._actor = None

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Reference:
            def run() -> Any:
                if self._actor is None:
                    raise RayError("the actor is dead")
                return getattr(self._actor, name)(*(_arrived(argument) for argument in arguments))

            return Reference(run)

        return SimpleNamespace(remote=remote)


def _arrived(argument: Any) -> Any:
    return argument.value() if isinstance(argument, Reference) else pickle.loads(pickle.dumps(argument))


class FakeRay:
    """The functions of the package."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cpus: int = 8) -> None:
        self.cpus = cpus
        self.started: list[Handle] = []

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus)}

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_job_id=lambda: id(self))

    def remote(self, **options: Any) -> Callable[[type], Any]:
        def start(cls: type) -> Handle:
            self.started.append(Handle(cls()))
            return self.started[-1]

        return lambda cls: SimpleNamespace(remote=lambda: start(cls))

    def put(self, value: Any) -> Reference:
        return Reference(lambda: value)

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        return reference.value()

    def wait(
        self, references: list[Reference], num_returns: int, timeout: float
    ) -> tuple[list[Reference], list[Reference]]:
        return references, []

    def kill(self, handle: Handle) -> None:
        handle.kill()
