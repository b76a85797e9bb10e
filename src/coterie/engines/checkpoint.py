"""Everything an engine needs to go on as if it had never stopped, in one file, written atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from errno import EINVAL
from pathlib import Path
from pickle import PickleError
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from coterie.contract import Predictor
from coterie.engines.bank import Column, SiteBank, take
from coterie.engines.room import OnDisk
from coterie.errors import CoterieError
from coterie.models import Layout, Models
from coterie.models.rows import NOTHING

if TYPE_CHECKING:
    from coterie.engines.base import Engine

FORMAT = 1
IN_MEMORY = 2**30
"""Bytes of a checkpoint up to which it is read as a whole."""
_MODELS = "__models__"
_OBJECT = "__state_dict__"


class Lost(CoterieError):
    """A file is missing or damaged, and will be the next time, too."""


def state_of(engine: Engine) -> dict[str, Any]:
    """The whole state of a run as plain tensors, numbers and texts (no pickled classes)."""
    snapshot: dict[str, Any] | None = None
    if engine.chosen.round is not None and engine.settings.keep_models:
        predictor = engine.best.load()
        snapshot = {"models": pack(predictor.models), "weights": predictor.weights, "combine": predictor.combine}
    return {
        "format": FORMAT,
        **_identity(engine),
        "resolved": engine.resolved,
        "round": engine.round,
        "server": pack(engine._store.values),
        **pack(engine.site_state()),
        "welcomed": engine.welcomed,
        "noised": engine.noised,
        "ledger": engine.ledger.state_dict(),
        "seconds": engine.seconds,
        "best": {"chosen": engine.chosen.state_dict(), "snapshot": snapshot},
    }


def _identity(engine: Engine) -> dict[str, Any]:
    """What a run and its checkpoint must have in common."""
    return {
        "algorithm": engine.algorithm.name,
        "options": engine.algorithm.options(),
        "seed": engine.settings.seed,
        "clients": list(engine.names),
        "model": {name: list(shape) for name, shape in engine.stack.layout.shapes.items()},
    }


def restore(engine: Engine, state: Mapping[str, Any]) -> None:
    """Put a saved state into an engine built from the same configuration."""
    for key, own in _identity(engine).items():
        if state[key] != own:
            raise CoterieError(f"the checkpoint is of another run: its {key} is {state[key]!r}, this run's {own!r}")
    if lacking := engine._store.values.keys() - state["server"].keys():
        raise CoterieError(
            f"the checkpoint is of an earlier version: it lacks {', '.join(sorted(lacking))} of "
            f"{engine.algorithm.name}'s server; delete it to start this part anew"
        )
    layout = engine.stack.layout
    engine.round = state["round"]
    engine.server.round = state["round"]
    restore_server(engine._store.values, state["server"], layout)
    engine.load_site_state(unpack({key: state[key] for key in ("bank", "shapes", "started")}, layout))
    engine.welcomed, engine.noised = state["welcomed"], state["noised"].cpu()
    engine.ledger.load_state_dict(state["ledger"])
    engine.seconds = dict(state["seconds"])
    best = state["best"]
    engine.chosen.load_state_dict(best["chosen"])
    if best["snapshot"] is not None:
        saved = best["snapshot"]
        predictor = Predictor(unpack(saved["models"], layout), saved["weights"], saved["combine"])
        engine.best.take(iter([(range(engine.K), predictor)]))


def bank_state(bank: SiteBank) -> dict[str, Any]:
    """The state of some clients; of each attribute the rows that are not its default."""
    return {
        "bank": {leaf: {"default": c.default, "rows": _own_rows(c), "own": c.own} for leaf, c in bank.columns.items()},
        "shapes": bank.shapes,
        "started": bank.started,
    }


def restore_bank(bank: SiteBank, state: Mapping[str, Any]) -> None:
    """Put what ``bank_state`` gave into the bank of the same clients."""
    bank.columns = {}
    for leaf, saved in state["bank"].items():
        column = bank.column(leaf, saved["default"])
        if saved["rows"] is not None:
            column.write(saved["own"].nonzero().flatten(), saved["rows"])
    bank.shapes, bank.started = dict(state["shapes"]), state["started"]


def restore_server(values: dict[str, Any], packed: Mapping[str, Any], layout: Layout) -> None:
    """Put the packed attributes of a server into the ``values`` that ``setup`` has made."""
    for name, value in packed.items():
        if isinstance(value, dict) and _OBJECT in value:  # setup has made the object, which takes its state back
            values[name].load_state_dict(unpack(value[_OBJECT], layout))
        else:
            whole = unpack(value, layout, owned=True)
            values[name] = whole.cpu() if isinstance(whole, Tensor) else whole  # only models live on a GPU there


def save(path: Path, engine: Engine) -> None:
    """Write a checkpoint; a crash while writing leaves the former one whole."""
    write(path, engine.state_dict())


def load(path: Path, engine: Engine) -> None:
    """Restore an engine from a file; ``CoterieError`` where it is missing, damaged or of another run."""
    state = read(path, engine.device)
    try:
        if not isinstance(state, dict) or state["format"] != FORMAT:
            raise KeyError("format")
        engine.load_state_dict(_on_cpu_indices(state))
    except (LookupError, TypeError, AttributeError) as error:
        raise CoterieError(
            f"the checkpoint {path} has an unknown format; it was written by another version of Coterie "
            "or for another purpose"
        ) from error


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write packed state in one step; a crash while writing leaves the former file whole."""
    temporary = path.with_name(f".{path.name}.partial")  # always the same, so that what a kill leaves is overwritten
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise CoterieError(
            f"the checkpoint {path} cannot be written ({error}); free space or choose another output"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read(
    path: Path,
    device: torch.device | str,
    *,
    what: str = "the checkpoint",
    missing: str = "start the run anew",
    damaged: str = "delete it to start this part anew",
) -> Any:
    """What ``write`` has written.

    Raises
    ------
    Lost
        It is not there, or damaged; the message ends with the remedy, ``missing`` or ``damaged``.
    CoterieError
        The system does not let it be read, at least not now.
    """
    try:
        with ZipFile(path) as archive:
            if archive.testzip() is not None:  # torch itself does not compare checksums
                raise BadZipFile("wrong checksum")
        large = path.stat().st_size > IN_MEMORY  # then it is read where it is needed
        return torch.load(path, map_location=device, weights_only=True, mmap=large and str(device) == "cpu")
    except FileNotFoundError as error:
        raise Lost(f"there is no {what.removeprefix('the ')} {path}; {missing}") from error
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, BadZipFile, PickleError) as error:
        if isinstance(error, OSError) and error.errno != EINVAL:  # which a damaged archive's places lead to
            reason = error.strerror or error
            raise CoterieError(f"{what} {path} cannot be read: {reason}; mend that, then go on") from error
        problem = f"is damaged ({type(error).__name__})"
        raise Lost(f"{what} {path} {problem}; {damaged}") from error


def _on_cpu_indices(state: dict[str, Any]) -> dict[str, Any]:
    """Masks and byte counts live on the CPU whatever the device of the models."""
    state["started"], state["welcomed"] = state["started"].cpu(), state["welcomed"].cpu()
    state["ledger"] = {key: value.cpu() for key, value in state["ledger"].items()}
    for saved in state["bank"].values():
        saved["own"] = saved["own"].cpu()
    return state


def pack(value: Any) -> Any:
    """State as plain data; a common row is written once."""
    if isinstance(value, Models):
        rows = len(value)
        once = value.common
        tensors = {name: (t[:1] if once else t).contiguous() for name, t in value.tensors.items()}
        return {_MODELS: True, "rows": rows, "once": once, "tensors": tensors}
    if isinstance(value, dict):
        return {key: pack(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [pack(entry) for entry in value]
    if hasattr(value, "state_dict") and not isinstance(value, Tensor):
        return {_OBJECT: pack(value.state_dict())}
    return value


def unpack(value: Any, layout: Layout, *, owned: bool = False) -> Any:
    """The inverse of ``pack``; Models keep the part of the layout that they were saved with."""
    if isinstance(value, dict) and value.get(_MODELS):
        names = set(value["tensors"])
        kept = replace(
            layout,
            parameters=tuple(n for n in (*layout.parameters, NOTHING) if n in names),
            buffers=tuple(n for n in layout.buffers if n in names),
            shapes={**layout.shapes, NOTHING: torch.Size([0])},
        )
        models = Models(kept, value["tensors"])
        if value["once"] and value["rows"] > 1:
            models = models.repeat(value["rows"])
        models.owned = owned
        return models
    if isinstance(value, dict):
        return {key: unpack(entry, layout, owned=owned) for key, entry in value.items()}
    if isinstance(value, list):
        return [unpack(entry, layout, owned=owned) for entry in value]
    return value


def _own_rows(column: Column) -> Any:
    if column.rows is None or not bool(column.own.any()):
        return None
    own = column.own.nonzero().flatten()
    return column.rows.gathered(own) if isinstance(column.rows, OnDisk) else take(column.rows, own)
