"""A site's own file, ``site.yaml``: who it is, where its data are, and what it allows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError

from coterie.config.explain import describe, explain
from coterie.deploy.sections import DataSection, data_section
from coterie.errors import CoterieError
from coterie.privacy import Policy
from coterie.yamltext import read_yaml


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"{value!r} is no name of a site: use letters, digits, '.', '_' and '-'")
    return value


def _mapping(value: Any) -> Any:
    """``policy:`` without anything below it is an empty one."""
    return {} if value is None else value


class SiteFile(BaseModel):
    """What ``site.yaml`` says; it stays at the site.

    Attributes
    ----------
    client : str
        Name of the site in the federation.
    data : DataSection
        Where its data are; see `coterie.deploy.sections`.
    policy : Mapping[str, Any]
        What the site allows to leave it.
    state : Path
        Folder of what it keeps for itself, absolute.
    log : Path, optional
        Its own log file, absolute; see `log_file`.
    device : str
        What it computes with: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
    threads : int, optional
        How many cores; default all.
    path : Path
        The file itself, absolute.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    client: Annotated[str, AfterValidator(_name)]
    data: Annotated[SerializeAsAny[DataSection], BeforeValidator(data_section)]
    policy: Annotated[Mapping[str, Any], BeforeValidator(_mapping)] = {}
    state: Annotated[Path, Field(strict=False)] = Path("state")
    log: Annotated[Path | None, Field(strict=False)] = None
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    path: Annotated[Path, Field(exclude=True)] = Path()

    @property
    def folder(self) -> Path:
        """The folder of the file, which relative paths start from."""
        return self.path.parent

    @property
    def log_file(self) -> Path:
        """The log: the one named, else ``site.log`` beside the state."""
        return self.state.parent / "site.log" if self.log is None else self.log

    @property
    def schema_path(self) -> Path:
        """Where the schema of the federation lies, if there is one."""
        return self.folder / "schema.yaml"

    @property
    def columns_path(self) -> Path:
        """Where it lies what the columns of every site's table are, if the sites prepare these together."""
        return self.folder / "columns.yaml"

    @classmethod
    def read(cls, path: Path | str) -> SiteFile:
        """Read and validate the file; relative paths in it start from its folder.

        Raises
        ------
        CoterieError
            It cannot be read, or a key or a value is wrong; the message names it and the nearest valid one.
        """
        path = Path(path).absolute()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise CoterieError(f"{path}: cannot be read ({reason}).") from error
        tree = read_yaml(text, str(path))
        if not isinstance(tree, Mapping):
            raise CoterieError(f"{path} must hold keys and values such as 'client: a', not {describe(tree)}.")
        if "path" in tree:
            raise CoterieError(
                f"{path}: unknown key path: the keys are client, data, policy, state, log, device, threads."
            )
        try:
            site = cls.model_validate(tree)
        except ValidationError as error:
            _, sentence = explain(error, tree, cls)
            raise CoterieError(f"{path}: {sentence}{'' if sentence.endswith('?') else '.'}") from error
        return site.model_copy(
            update={
                "path": path,
                "state": path.parent / site.state,
                "log": None if site.log is None else path.parent / site.log,
                "data": site.data.below(path.parent),
            }
        )


def policy_of(site: SiteFile) -> Policy:
    """The policy of a site.

    Raises
    ------
    CoterieError
        A key or a value is wrong; the message names it.
    """
    tree = dict(site.policy)
    try:
        return Policy.model_validate(tree)
    except ValidationError as error:
        _, sentence = explain(error, tree, Policy)
        raise CoterieError(f"{site.path}: policy: {sentence}{'' if sentence.endswith('?') else '.'}") from error
