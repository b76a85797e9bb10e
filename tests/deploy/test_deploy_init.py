"""What `coterie deploy init` writes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from click.testing import Result
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from coterie.cli import app
from coterie.config import Config, SitesConfig, parse_config
from coterie.deploy.data import site_federation
from coterie.deploy.demo import demo_config
from coterie.deploy.own_table import read_columns
from coterie.deploy.schema import read_schema
from coterie.deploy.sitefile import SiteFile
from coterie.deploy.writing import Plan, write_federation
from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.frames import encode

EXPERIMENT = """\
name: trial
federation: {source: digits, partition: {rule: rotation, clients: 3}, train: 12, validation: 6, test: 10}
model: {name: mlp, hidden: [8]}
algorithms: [local, fedavg]
rounds: 2
"""
NAMES = ["client-00", "client-01", "client-02"]


def coterie(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["deploy", *map(str, words)])


def error_of(result: Result) -> str:
    assert result.exit_code == 2, (result.output, result.exception)
    return result.stderr.removeprefix("error: ").strip()


def experiment() -> Config:
    return parse_config(yaml.safe_load(EXPERIMENT))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of the experiment's own clients."""
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "trial.yaml").write_text(EXPERIMENT)
    result = coterie("init", folder / "federation", "--config", folder / "trial.yaml", "--port", 9500)
    assert result.exit_code == 0, result.output
    return folder / "federation"


def test_the_app_is_one_that_flower_accepts(federation: Path) -> None:
    written = tomllib.loads((federation / "app" / "pyproject.toml").read_text())
    flower = written["tool"]["flwr"]["app"]
    assert flower["publisher"] == "coterie"
    assert flower["components"] == {
        "serverapp": "coterie.deploy.app:server_app",
        "clientapp": "coterie.deploy.app:client_app",
    }
    assert flower["config"] == {"experiment": "", "output": "", "sites-folder": ""}
    assert {"name", "version", "license"} <= set(written["project"])


def test_the_experiment_is_resolved_and_has_its_sites(federation: Path) -> None:
    tree = yaml.safe_load((federation / "server" / "experiment.yaml").read_text())
    assert tree.pop("sites") == {"names": NAMES, "deadline": 600, "quorum": 2, "patience": 1800}
    assert parse_config(tree) == experiment()


@pytest.mark.parametrize(("sites", "enough"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (10, 8), (50, 40)])
def test_the_quorum_is_four_in_five(sites: int, enough: int) -> None:
    assert SitesConfig(names=[str(site) for site in range(sites)]).needed == enough


def test_only_the_owner_reads_private_keys(federation: Path) -> None:
    private = list(federation.rglob("*.key"))
    assert len(private) == 2 + len(NAMES)
    for path in federation.rglob("*"):
        if path.is_file():
            expected = 0o600 if path in private else 0o755 if path.suffix == ".sh" else 0o644
            assert path.stat().st_mode & 0o777 == expected, path


def test_the_certificate_is_for_the_address_and_this_machine(tmp_path: Path) -> None:
    for address, kind in (("fed.example.org", x509.DNSName), ("192.0.2.7", x509.IPAddress)):
        folder = tmp_path / address
        write_federation(folder, Plan(experiment(), ["a", "b"], address, 443))
        server = x509.load_pem_x509_certificate((folder / "server" / "server.crt").read_bytes())
        authority = x509.load_pem_x509_certificate((folder / "sites" / "a" / "ca.crt").read_bytes())
        server.verify_directly_issued_by(authority)
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert address in [str(name) for name in names.get_values_for_type(kind)]
        assert "127.0.0.1" in [str(name) for name in names.get_values_for_type(x509.IPAddress)]
        assert "localhost" in names.get_values_for_type(x509.DNSName)
        assert (server.not_valid_after_utc - server.not_valid_before_utc).days > 4 * 365
        assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_each_site_has_a_key_of_its_own_that_the_server_knows(federation: Path) -> None:
    seen = set()
    for name in NAMES:
        site = federation / "sites" / name
        key = serialization.load_ssh_private_key((site / "site.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        public = (site / "site.key.pub").read_bytes()
        assert public == (federation / "server" / "sites" / f"{name}.pub").read_bytes()
        loaded = serialization.load_ssh_public_key(public)
        assert loaded.public_numbers() == key.public_key().public_numbers()  # type: ignore[union-attr]
        seen.add(public.split()[1])
    assert len(seen) == len(NAMES)


def test_nothing_of_the_server_is_in_a_sites_folder(federation: Path) -> None:
    secrets = {(federation / "server" / name).read_bytes() for name in ("ca.key", "server.key")}
    for path in (federation / "sites").rglob("*"):
        assert not path.is_file() or path.read_bytes() not in secrets


def test_scripts_are_valid_and_nothing_is_left_to_fill_in(federation: Path) -> None:
    scripts = list(federation.rglob("*.sh"))
    assert len(scripts) == 5 + len(NAMES)
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    for path in federation.rglob("*"):
        if path.is_file():
            assert "@{" not in path.read_text(), path
    for path in federation.rglob("compose.yaml"):
        assert yaml.safe_load(path.read_text())["services"]


def test_sites_that_are_clients_of_the_experiment_have_its_data(federation: Path) -> None:
    simulated = build_federation(experiment().federation, seed=0)
    for i, name in enumerate(NAMES):
        site = SiteFile.read(federation / "sites" / name / "site.yaml")
        mine = site_federation(site, seed=0, schema=read_schema(site.schema_path))
        assert mine.names == (name,)
        for split in ("train", "validation", "test"):
            ours, theirs = mine.split(split).client(0), simulated.split(split).client(i)  # type: ignore[arg-type]
            assert all(one.equal(other) for one, other in zip(ours, theirs, strict=True))


def test_other_sites_say_where_their_data_are(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(EXPERIMENT)
    (tmp_path / "schema.yaml").write_text("classes: 2\ntarget: ill\nfeatures: [{name: age}]\n")
    schema = ["--schema", tmp_path / "schema.yaml"]
    assert coterie("init", tmp_path / "f", "-c", tmp_path / "trial.yaml", "--sites", "a,b", *schema).exit_code == 0
    site = SiteFile.read(tmp_path / "f" / "sites" / "a" / "site.yaml")
    assert site.data.target == "ill"  # type: ignore[attr-defined]
    for copy in ("app", "sites/a", "sites/b"):
        assert read_schema(tmp_path / "f" / copy / "schema.yaml").target == "ill"


@pytest.mark.filterwarnings("default::coterie.errors.CoterieWarning")
def test_an_experiment_whose_data_are_not_here(tmp_path: Path) -> None:
    (tmp_path / "heart.yaml").write_text("federation: {source: heart-disease, partition: {rule: natural}}\n")
    words = [tmp_path / "f", "--config", tmp_path / "heart.yaml", "--data-dir", tmp_path]
    assert "--sites is missing, and the experiment's own data do not say" in error_of(coterie("init", *words))
    result = coterie("init", *words, "--sites", "cleveland,va")
    assert result.exit_code == 0, result.output
    assert "note: No schema is written, so sites check less: 'heart-disease' needs" in result.stderr
    assert not list((tmp_path / "f").rglob("schema.yaml"))


def test_outside_this_machine_a_proxy_lets_messages_through_and_nothing_else(tmp_path: Path) -> None:
    write_federation(tmp_path / "f", Plan(experiment(), ["a"], "fed.example.org", 9092))
    server = tmp_path / "f" / "server"
    proxy = (server / "nginx.conf").read_text()
    assert "listen 9092 ssl" in proxy
    assert "location /v1/fleet/ {\n      proxy_pass https://127.0.0.1:9093;" in proxy
    assert "location / {\n      return 403;" in proxy
    assert "\nPORT=9093\n" in (server / "start.sh").read_text()
    assert "fed.example.org:9092" in (tmp_path / "f" / "sites" / "a" / "start.sh").read_text()
    config = tomllib.loads((server / "flwr" / "config.toml").read_text())
    assert config["superlink"]["coterie"]["address"] == "127.0.0.1:9093"


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    plan = Plan(experiment(), ["a"])
    write_federation(tmp_path / "f", plan)
    key = (tmp_path / "f" / "server" / "ca.key").read_bytes()
    (tmp_path / "f" / "sites" / "a" / "mine.csv").write_text("data")
    with pytest.raises(CoterieError, match="is there already: choose another folder, or replace its files"):
        write_federation(tmp_path / "f", plan)
    assert (tmp_path / "f" / "server" / "ca.key").read_bytes() == key
    write_federation(tmp_path / "f", plan, overwrite=True)
    assert (tmp_path / "f" / "server" / "ca.key").read_bytes() != key
    assert (tmp_path / "f" / "sites" / "a" / "mine.csv").read_text() == "data"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sites", "a,a"], "--sites: name each site once"),
        (["--sites", "a,../b"], "--sites: '../b' would name a folder"),
        (["--sites", ","], "--sites: name each site once, and at least one"),
        (["--address", "host;rm"], "--address: 'host;rm' is no host name or IP address."),
        (["--port", "70000"], "--port: 70000 is no port that can be used."),
        (["--config", "quickstrat"], "there is no preset quickstrat: did you mean quickstart?"),
        (["--schema", "nowhere.yaml"], "nowhere.yaml: cannot be read as text"),
        (["-s", "rounds=no"], "rounds must be a whole number"),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "trial.yaml").write_text(EXPERIMENT)
    message = error_of(coterie("init", tmp_path / "f", "--config", tmp_path / "trial.yaml", *words))
    assert sentence in message
    assert not (tmp_path / "f").exists()


def test_without_flower_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    message = error_of(coterie("init", tmp_path / "f", "--config", "quickstart", "--sites", "a"))
    assert message == "coterie deploy needs Flower: pip install 'coterie[flower]'."
    assert not (tmp_path / "f").exists()


def test_the_demonstration_takes_the_data_that_are_there(tmp_path: Path) -> None:
    config = demo_config(tmp_path)
    assert config.federation.source == "digits"
    assert build_federation(config.federation, seed=0).k == 4


SITES = "name: wards\nfederation: {source: sites}\nmodel: {name: mlp, hidden: [8]}\n"


@pytest.mark.filterwarnings("default::coterie.errors.CoterieWarning")
def test_an_experiment_whose_data_are_at_the_sites(tmp_path: Path) -> None:
    (tmp_path / "wards.yaml").write_text(SITES)
    words = [tmp_path / "f", "-c", tmp_path / "wards.yaml"]
    assert error_of(coterie("init", *words)).endswith("do not say: federation.source is sites")
    result = coterie("init", *words, "--sites", "a,b")
    assert result.exit_code == 0, result.output
    assert "give one: --schema FILE" in result.stderr
    tree = yaml.safe_load((tmp_path / "f" / "server" / "experiment.yaml").read_text())
    assert parse_config(tree).sites is not None
    assert tree["federation"] == {
        "source": "sites", "partition": {"rule": "natural", "min_examples": 10}, "normalise": "none",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_the_experiment_may_name_its_sites(tmp_path: Path) -> None:
    (tmp_path / "wards.yaml").write_text(SITES + "sites: {names: [north, south], deadline: 60}\n")
    assert coterie("init", tmp_path / "f", "-c", tmp_path / "wards.yaml").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "f" / "sites").iterdir()) == ["north", "south"]


def test_scripts_say_where_flower_is_missing(federation: Path) -> None:
    for name in ("register", "status", "run", "flower"):
        done = subprocess.run(
            ["bash", federation / "server" / f"{name}.sh"],
            env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.startswith("flwr is not there: pip install 'coterie[flower]'"), done.stderr


def test_a_run_that_could_not_begin_says_what_to_look_at(federation: Path, tmp_path: Path) -> None:
    (tmp_path / "flwr").write_text("#!/bin/sh\necho Connection to the SuperLink is unavailable.\nexit 1\n")
    (tmp_path / "flwr").chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = ["bash", federation / "server" / "run.sh", tmp_path / "run"]
    said = subprocess.run(script, env=path, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr.count("bash start.sh must be running here")) == (1, 1)


@pytest.mark.filterwarnings("default::coterie.errors.CoterieWarning")
def test_sites_of_the_command_line_complete_the_section_sites(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(SITES + "sites: {deadline: 60}\n")
    assert coterie("init", tmp_path / "f", "-c", tmp_path / "trial.yaml", "--sites", "b,a").exit_code == 0
    stated = yaml.safe_load((tmp_path / "f/server/experiment.yaml").read_text())["sites"]
    assert (stated["names"], stated["deadline"]) == (["b", "a"], 60)
    assert "sites.names is missing" in error_of(coterie("init", tmp_path / "g", "-c", tmp_path / "trial.yaml"))


def test_a_quorum_that_cannot_be_met(tmp_path: Path) -> None:
    wards = parse_config({**yaml.safe_load(SITES), "sites": {"names": ["a", "b", "c"], "quorum": 3}})
    with pytest.raises(CoterieError, match=r"^sites\.quorum is 3, but there are 2 sites: lower it\.$"):
        write_federation(tmp_path / "f", Plan(wards, ["a", "b"]))


def test_sites_that_prepare_tables_together_are_told_what_their_columns_are(tmp_path: Path) -> None:
    section = "{source: sites, preprocessing: federated, target: state, task: regression, missing: mean}"
    (tmp_path / "trial.yaml").write_text(f"federation: {section}\nalgorithms: [local]\n")
    result = coterie("init", tmp_path / "federation", "--config", tmp_path / "trial.yaml", "--sites", "a,b")
    assert result.exit_code == 0, result.output
    assert "schema" not in result.stderr
    site = SiteFile.read(tmp_path / "federation" / "sites" / "b" / "site.yaml")
    assert site.data.target is None  # that of columns.yaml holds, and another experiment may have another
    options = read_columns(site.columns_path)
    assert (options.target, options.task, options.missing) == ("state", "regression", "mean")
    (tmp_path / "schema.yaml").write_text("{classes: 2, shape: [3]}")
    words = ["--sites", "a,b", "--schema", tmp_path / "schema.yaml"]
    refused = coterie("init", tmp_path / "other", "--config", tmp_path / "trial.yaml", *words)
    assert error_of(refused).startswith("--schema fixes beforehand what federation.preprocessing: federated computes")


def patients() -> pd.DataFrame:
    """40 rows of two hospitals."""
    random = np.random.default_rng(0)
    age = random.normal(50, 10, 40).round(1)
    return pd.DataFrame(
        {
            "hospital": ["north", "south"] * 20,
            "age": age,
            "ward": random.permutation(["a", "b"] * 20),
            "dose": (age / 10).round(2),
            "sick": np.where(age > np.median(age), "yes", "no"),
        }
    )


@pytest.mark.filterwarnings("ignore:schema.yaml, which every site is given")
@pytest.mark.parametrize(("preprocessing", "own"), [("federated", False), ("client", True), ("none", False)])
@pytest.mark.parametrize("target", ["sick", "dose"])
def test_a_studied_table_is_the_schema_of_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preprocessing: str, own: bool, target: str
) -> None:
    """A site with a table of the same columns fits, and its inputs are those of the simulation."""
    monkeypatch.chdir(tmp_path)
    table = patients()[["hospital", "age", "ward", "dose", "sick"]]
    table.to_csv("all.csv", index=False)
    section = {
        "source": "table", "path": "all.csv", "client": "hospital", "target": target, "features": ["age", "ward"],
        "preprocessing": preprocessing,
        "categorical": {"ward": sorted(table.ward.unique())},
    }  # fmt: skip
    tree = {"federation": section, "model": "logistic", "algorithms": ["local"], "rounds": 1}
    Path("mine.yaml").write_text(yaml.safe_dump(tree))
    result = coterie("init", "federation", "--config", "mine.yaml", "--sites", "other")
    assert result.exit_code == 0, result.output
    site = Path("federation/sites/other")
    table.loc[table.hospital == "north", ["age", "ward", target]].to_csv(site / "patients.csv", index=False)
    result = coterie("check", site / "site.yaml")
    assert result.exit_code == 0, result.output

    schema = read_schema(site / "schema.yaml")
    whole = build_federation(section, seed=0)
    if own:
        assert {(feature.mean, feature.std) for feature in schema.features or []} == {(0.0, 1.0)}
        assert "standardise: own" in (site / "site.yaml").read_text()
    else:
        rows = whole.train.rows(torch.arange(int(whole.train.n[0]))).numpy()
        expected = whole.train.client(0)[0].numpy()
        assert (encode(table.iloc[rows], schema.features or []) == expected).all()


@pytest.mark.filterwarnings("default:schema.yaml, which every site is given")
def test_means_that_every_site_is_given_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    patients()[["hospital", "age", "sick"]].to_csv("all.csv", index=False)
    section = {"source": "table", "path": "all.csv", "client": "hospital", "target": "sick"}
    Path("mine.yaml").write_text(yaml.safe_dump({"federation": section, "algorithms": ["local"], "rounds": 1}))
    said = coterie("init", "federation", "--config", "mine.yaml").stderr
    assert "holds means and standard deviations of the experiment's own data" in said
    result = coterie("init", "again", "--config", "mine.yaml", "-s", "federation.preprocessing=none")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("privacy", {"noise": 1.0, "clip": 1.0}, "privacy is each site's own affair: remove it"),
        ("newcomers", {"clients": 1}, "newcomers.clients holds out clients, which is for simulations: remove it"),
    ],
)
def test_what_is_for_simulations_is_refused_at_once(tmp_path: Path, key: str, value: object, sentence: str) -> None:
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump({**yaml.safe_load(EXPERIMENT), key: value}))
    result = coterie("init", tmp_path / "federation", "--config", tmp_path / "trial.yaml")
    assert error_of(result).startswith(sentence)
    assert not (tmp_path / "federation").exists()
