"""Personalised models on disk: one safetensors file a client, readable without coterie."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, contiguous_format

from coterie.errors import CoterieError
from coterie.runs.atomic import atomic_path
from coterie.runs.directory import RunDirectory, make_folder, system_folder

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class StoredModel:
    """What the file of one client holds.

    Attributes
    ----------
    tensors : dict of str to Tensor
        By name, without the client axis; the candidates of a mixture have an axis ``(c,)`` first.
    facts : dict
        Whose model it is, and what `save_models` was told about it.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def save_models(
    run: RunDirectory,
    algorithm: str,
    variant: str | None,
    seed: int,
    names: Sequence[str],
    rows: Mapping[str, Tensor],
    *,
    round: int | None = None,
    facts: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """Write one model a client to ``models/<algorithm>-<variant>/seed<k>/<client>.safetensors``.

    Characters of a client's name that a file name cannot hold are percent-encoded. Each file says in its
    metadata which client, system, seed and round it belongs to.

    Args:
        run: the run directory.
        algorithm: the system's algorithm.
        variant: its variant, or None.
        seed: the seed.
        names: the K clients, in the order of the rows.
        rows: by tensor name, the tensors of all clients, each ``(K, *shape)``.
        round: the round that the models are from.
        facts: for each client what the metadata shall say besides, plain JSON values.

    Returns:
        The folder with the K files.

    Raises:
        CoterieError: a file cannot be written.

    """
    folder = make_folder(run.models / system_folder(algorithm, variant) / f"seed{seed}")
    for name, tensor in rows.items():
        if len(tensor) != len(names):
            raise ValueError(f"tensor {name!r} has {len(tensor)} rows for {len(names)} clients")
    about = {"algorithm": algorithm, "variant": variant or "", "seed": str(seed)}
    if round is not None:
        about["round"] = str(round)
    on_cpu = {name: tensor.detach().cpu() for name, tensor in rows.items()}
    for i, client in enumerate(names):
        more = {} if facts is None else dict(facts[i])
        # A row is a view of everybody's tensor; the clone is what a single model needs and no more.
        model = {name: tensor[i].clone(memory_format=contiguous_format) for name, tensor in on_cpu.items()}
        with atomic_path(_file(folder, client), sync=False) as temporary:
            # one entry: safetensors writes several in any order, and equal models shall be equal files
            save_file(model, temporary, metadata={"coterie": json.dumps({"client": client, **about, **more})})
    return folder


def load_model(run: RunDirectory, algorithm: str, variant: str | None, seed: int, client: str) -> dict[str, Tensor]:
    """Read one client's model as a state dict: tensor name to tensor, without the client axis.

    Raises:
        CoterieError: there is no such model, or its file is damaged.

    """
    folder = run.models / system_folder(algorithm, variant) / f"seed{seed}"
    path = _file(folder, client)
    if not path.exists():
        there = stored_clients(folder)
        hint = f"there are models of {', '.join(there[:5])}{' ...' if len(there) > 5 else ''}"
        raise CoterieError(f"There is no model {path}; {hint if there else 'the run has saved none there'}.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CoterieError(f"The model {path} is damaged ({error}); run the experiment again.") from error


def read_model(folder: Path, client: str) -> StoredModel:
    """Read the model of a client from ``folder``, which holds those of one system and seed.

    Raises:
        CoterieError: the file cannot be read, or is damaged.

    """
    path = _file(folder, client)
    try:
        with safe_open(path, framework="pt") as content:
            facts = json.loads((content.metadata() or {})["coterie"])
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 -- it is no mapping
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CoterieError(f"The model {path} is damaged ({error}); run the experiment again.") from error
    if not isinstance(facts, dict):
        raise CoterieError(f"The model {path} is damaged (its metadata are no mapping); run the experiment again.")
    return StoredModel(tensors, facts)


def stored_clients(folder: Path) -> list[str]:
    """Return the names of the clients whose models lie in ``folder``, in alphabetical order."""
    return sorted(unquote(file.name.removesuffix(SUFFIX)) for file in folder.glob(f"*{SUFFIX}"))


def copy_model(run: RunDirectory, source: tuple[str, str, int], target: tuple[str, str, int], client: str) -> None:
    """Give one run (algorithm, variant, seed) a client's model of another, where that has saved it.

    Raises:
        CoterieError: it cannot be written.

    """
    of_source, of_target = (
        run.models / system_folder(algorithm, variant) / f"seed{seed}" for algorithm, variant, seed in (source, target)
    )
    if _file(of_source, client).exists():
        with atomic_path(_file(make_folder(of_target), client), sync=False) as temporary:
            shutil.copyfile(_file(of_source, client), temporary)


def client_file(client: str) -> str:
    """Return a client's name as the name of a file or folder: unusual characters are percent-encoded."""
    return quote(client, safe=" ,()+=@")


def _file(folder: Path, client: str) -> Path:
    """Return the file of a client's model."""
    return folder / f"{client_file(client)}{SUFFIX}"
