"""Writing a federation of real sites: the Flower app, the server's folder and a folder for each site."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from coterie.config import Config, SitesConfig
from coterie.deploy import templates
from coterie.deploy.certificates import LOOPBACK, Pair, server_identity, site_identity, write_private
from coterie.deploy.own_table import prepared_together, write_columns
from coterie.deploy.schema import write_schema
from coterie.deploy.suited import check_suited
from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.federation.schema import Schema
from coterie.yamltext import write_yaml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SITE_PORT = 9094
"""Where a site serves Flower's processes on its own machine; sites that share a machine have a port each."""


@dataclass(frozen=True)
class Plan:
    """What is to be written.

    Attributes
    ----------
    config : Config
        The experiment.
    sites : sequence of str
        Names of the sites.
    address, port : str, int
        How the sites reach the server.
    schema : Schema, optional
        What every site's data must be like.
    federation : Federation, optional
        The simulator's federation of the experiment, where it could be built: a site that is one of its clients is
        given that client's data.
    data_dir : Path, optional
        Where the data files of that source lie.
    """

    config: Config
    sites: Sequence[str]
    address: str = "127.0.0.1"
    port: int = 9092
    schema: Schema | None = None
    federation: Federation | None = None
    data_dir: Path | None = None

    @property
    def inner_port(self) -> int:
        """The SuperLink's port on its own machine; before a proxy it is another one than the sites'."""
        return self.port if self.address in LOOPBACK else self.port + 1

    def check(self) -> None:
        """Refuse what is for simulations, wrong names, a quorum that cannot be met, no addresses and no ports."""
        check_suited(self.config)
        for name in self.sites:
            if not NAME.fullmatch(name):
                raise CoterieError(f"--sites: {name!r} would name a folder: use letters, digits, '.', '_' and '-'.")
        if not self.sites or len(set(self.sites)) != len(self.sites):
            raise CoterieError("--sites: name each site once, and at least one: --sites a,b,c.")
        asked = None if self.config.sites is None else self.config.sites.quorum
        if asked is not None and asked > len(self.sites):
            raise CoterieError(f"sites.quorum is {asked}, but there are {len(self.sites)} sites: lower it.")
        if not re.fullmatch(r"[A-Za-z0-9.:-]+", self.address):
            raise CoterieError(f"--address: {self.address!r} is no host name or IP address.")
        if self.schema is not None and prepared_together(self.config.as_dict()) is not None:
            raise CoterieError(
                "--schema fixes beforehand what federation.preprocessing: federated computes: leave out one of them."
            )
        if not 1 <= self.port <= 65534:
            raise CoterieError(f"--port: {self.port} is no port that can be used.")


def write_federation(folder: Path, plan: Plan, *, overwrite: bool = False) -> None:
    """Write all files of a federation.

    Parameters
    ----------
    folder : Path
        Where to; its sub-folders are ``app``, ``server`` and ``sites``.
    plan : Plan
        What to write.
    overwrite : bool
        Write into a folder that is not empty. Keys are made anew, so the sites need their new folders.

    Raises
    ------
    CoterieError
        A wrong name, a folder that is not empty, or one that cannot be written.
    """
    plan.check()
    if not overwrite and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CoterieError(f"{folder} is there already: choose another folder, or replace its files by --overwrite.")
    authority, server = server_identity(plan.address)
    try:
        _write_app(folder / "app", plan)
        keys = {name: site_identity(name) for name in plan.sites}
        _write_server(folder / "server", plan, authority, server, keys)
        for position, name in enumerate(plan.sites):
            _write_site(folder / "sites" / name, plan, name, position, authority, keys[name])
        proxied = "" if plan.address in LOOPBACK else ", which\n`server/nginx.conf` sees to"
        names = ", ".join(plan.sites)
        values = {"count": len(plan.sites), "names": names, "experiment": plan.config.name, "proxied": proxied}
        _write(folder / "README.md", "federation.md", plan, **values)
    except OSError as error:
        raise CoterieError(f"{error.filename or folder} cannot be written ({error.strerror or error}).") from error


def _write_app(folder: Path, plan: Plan) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "pyproject.toml", "app.toml", plan, experiment=plan.config.name)
    if plan.schema is not None:
        write_schema(folder / "schema.yaml", plan.schema)


def _write_server(folder: Path, plan: Plan, authority: Pair, server: Pair, keys: Mapping[str, Pair]) -> None:
    for part in ("flwr", "sites"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "experiment.yaml").write_text(write_yaml(_experiment(plan)), encoding="utf-8")
    write_private(folder / "ca.key", authority.private)
    write_private(folder / "server.key", server.private)
    (folder / "ca.crt").write_bytes(authority.public)
    (folder / "server.crt").write_bytes(server.public)
    for name, pair in keys.items():
        (folder / "sites" / f"{name}.pub").write_bytes(pair.public)
    local = plan.address in LOOPBACK
    exposure = "COTERIE_BIND=0.0.0.0 would change that." if local else (
        "sites reach it through\n# the proxy of nginx.conf, which lets their messages through and nothing else."
    )  # fmt: skip
    certificate = (folder / "ca.crt").absolute()
    _write(folder / "flwr" / "config.toml", "connection.toml", plan, certificate=certificate)
    _write(folder / "start.sh", "server-start.sh", plan, exposure=exposure, command="flower-superlink")
    _write(folder / "register.sh", "server-register.sh", plan)
    _write(folder / "status.sh", "server-status.sh", plan)
    _write(folder / "run.sh", "server-run.sh", plan)
    _write(folder / "flower.sh", "server-flower.sh", plan)
    _write(folder / "server.service", "server.service", plan)
    _write(folder / "compose.yaml", "server-compose.yaml", plan, proxy="" if local else _text("compose-proxy.yaml"))
    if not local:
        _write(folder / "nginx.conf", "nginx.conf", plan)


def _write_site(folder: Path, plan: Plan, name: str, position: int, authority: Pair, key: Pair) -> None:
    (folder / "flwr").mkdir(parents=True, exist_ok=True)
    write_private(folder / "site.key", key.private)
    (folder / "site.key.pub").write_bytes(key.public)
    (folder / "ca.crt").write_bytes(authority.public)
    if plan.schema is not None:
        write_schema(folder / "schema.yaml", plan.schema)
    if (columns := prepared_together(plan.config.as_dict())) is not None:
        write_columns(folder / "columns.yaml", columns)
    port = plan.inner_port + 1 + position if plan.address in LOOPBACK else SITE_PORT
    data = _source_of(plan, name)
    if data is None:
        target = next(iter(() if plan.schema is None else plan.schema.targets), "sick")
        kinds = "site-data.yaml" if columns is None else "site-table.yaml"  # tables follow columns.yaml in their target
        own = ", standardise: own" if _each_by_itself(plan) else ""
        about, section = "Adapt it.", _fill(_text(kinds), {"target": target, "own": own}).strip()
    else:
        about, section = "This is a client of the experiment's own source.", write_yaml({"data": data}).strip()
    _write(folder / "site.yaml", "site.yaml", plan, client=name, about_data=about, data=section)
    _write(folder / "start.sh", "site-start.sh", plan, client=name, site_port=port, command="flower-supernode")
    _write(folder / "site.service", "site.service", plan, client=name)
    _write(folder / "compose.yaml", "site-compose.yaml", plan)
    _write(folder / "README.md", "site.md", plan, client=name)


def _experiment(plan: Plan) -> dict[str, Any]:
    """The resolved configuration with its section ``sites:``."""
    tree = plan.config.as_dict()
    stated = {**(tree.get("sites") or {}), "names": list(plan.sites)}
    sites = SitesConfig.model_validate(stated)
    return {**tree, "sites": {**sites.model_dump(exclude_none=True), "quorum": sites.needed}}


def _each_by_itself(plan: Plan) -> bool:
    """Whether the clients of the experiment's own federation standardise their tables by their own rows."""
    return plan.federation is not None and "schemas" in plan.federation.source


def _source_of(plan: Plan, name: str) -> dict[str, Any] | None:
    """The section ``data:`` of a site that is a client of the experiment's own federation."""
    if plan.federation is None or name not in plan.federation.names:
        return None
    section = plan.config.federation.model_dump(mode="json", exclude_none=True)
    if "path" in section and Path(section["path"]).exists():  # a user's own file, relative to where we are
        section["path"] = str(Path(section["path"]).absolute())
    place = {} if plan.data_dir is None else {"data_dir": str(plan.data_dir.absolute())}
    return {"source": section.pop("source"), "client": name, **place, **section}


def _write(path: Path, template: str, plan: Plan, **values: Any) -> None:
    """Write a template; scripts can be executed."""
    common = {
        "coterie": version("coterie"),
        "address": plan.address,
        "port": plan.port,
        "inner_port": plan.inner_port,
        "common": _text("common.sh").strip(),
        "connect": _text("connection.sh").strip(),
        "connection": _text("connection.toml").strip(),
        "certificate": "$PWD/ca.crt",
        "again": _text("again.sh").strip(),
    }
    path.write_text(_fill(_text(template), {**common, **values}), encoding="utf-8")
    path.chmod(0o755 if path.suffix == ".sh" else 0o644)


def _text(template: str) -> str:
    return (files(templates) / template).read_text(encoding="utf-8")


def _fill(text: str, values: Mapping[str, Any]) -> str:
    """Put values in for ``@{name}``; values may hold further ones."""
    while "@{" in text:
        text = re.sub(r"@\{(\w+)\}", lambda found: str(values[found[1]]), text)
    return text
