"""What a finished run leaves behind for newcomers: the server as it was after the last round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.engines import checkpoint
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.engines.base import Engine

FORMAT = 1


@dataclass(frozen=True)
class Trained:
    """The server of a finished run, and what a newcomer's data and model must fit.

    Attributes
    ----------
    algorithm, options : str, mapping
        The method and its hyper-parameters.
    names, n : tuple of str, Tensor (K,)
        The members of the federation and their training examples.
    task, classes, feature_shape : str, int, tuple of int
        What their data are like.
    model : mapping
        The shapes of the model's tensors by name.
    round, seed : int
        The last round and the run's seed.
    unlabelled_newcomers : bool
        Whether the members gave what newcomers without labels need.
    server : mapping
        The server's attributes, packed.
    """

    algorithm: str
    options: Mapping[str, Any]
    names: tuple[str, ...]
    n: Tensor
    task: str
    classes: int
    feature_shape: tuple[int, ...]
    model: Mapping[str, list[int]]
    round: int
    seed: int
    unlabelled_newcomers: bool
    server: Mapping[str, Any]

    @classmethod
    def of(cls, engine: Engine) -> Trained:
        """What ``engine`` leaves behind now; tensors are shared with it."""
        federation = engine.federation
        return cls(
            algorithm=engine.algorithm.name,
            options=engine.algorithm.options(),
            names=federation.names,
            n=federation.train.n.cpu(),
            task=federation.task,
            classes=federation.classes,
            feature_shape=federation.feature_shape,
            model={name: list(shape) for name, shape in engine.stack.layout.shapes.items()},
            round=engine.round,
            seed=engine.settings.seed,
            unlabelled_newcomers=engine.settings.unlabelled_newcomers,
            server=checkpoint.pack(engine._store.values),
        )

    def save(self, path: Path) -> None:
        """Write it in one step; ``CoterieError`` where that is impossible."""
        content = {key: value for key, value in vars(self).items() if key not in ("names", "feature_shape")}
        plain = {"names": list(self.names), "feature_shape": list(self.feature_shape)}
        checkpoint.write(path, {"format": f"server {FORMAT}", **content, **plain})

    @classmethod
    def load(cls, path: Path, device: str | torch.device = "cpu") -> Trained:
        """Read what ``save`` wrote.

        Raises
        ------
        CoterieError
            The file is missing, damaged or of another kind.
        """
        content = checkpoint.read(
            path,
            device,
            what="the saved server",
            missing="it is written when a method has trained to the end, with save_server on: continue the run with "
            "coterie resume, or run it again",
            damaged="run the experiment again",
        )
        try:
            if content.pop("format") != f"server {FORMAT}" or not isinstance(content["server"], dict):
                raise KeyError("format")
            content["round"] = int(content["round"])
            content["names"], content["feature_shape"] = tuple(content["names"]), tuple(content["feature_shape"])
            content["n"] = content["n"].cpu()
            return cls(**content)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CoterieError(
                f"{path} has an unknown format: it was written by another version of Coterie."
            ) from error
