"""Commands for real sites: deploy init, deploy check, deploy demo."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from coterie.cli.arguments import AsJson, DataDir, Debug, Overrides, Quiet
from coterie.cli.printing import friendly, print_json, standard_output
from coterie.errors import CoterieError, CoterieWarning

if TYPE_CHECKING:
    from coterie.config import Config
    from coterie.federation import Federation

deploy = typer.Typer(
    name="deploy",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Real sites, on Flower: write a federation, check a site's data, try it on this machine.\n\n"
        "It needs [bold]pip install 'coterie\\[flower]'[/]."
    ),
)


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the federation.")],
    config: Annotated[str, typer.Option("--config", "-c", metavar="CONFIG|PRESET", help="The experiment to run.")],
    sites: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Names of the sites; default: sites.names, else the experiment's clients."),
    ] = None,
    address: Annotated[
        str, typer.Option(help="Host name or IP address by which sites reach the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port by which sites reach the server.")] = 9092,
    schema: Annotated[
        Path | None, typer.Option(help="What every site's data must be like; default: as the experiment's own data.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an existing folder, keys included.")
    ] = False,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    debug: Debug = False,
) -> None:
    """Write a federation of real sites: the server's folder and one for each site, with keys, certificates, scripts.

    Sites that are clients of the experiment's own federation, such as the hospitals of heart-disease, are given its
    data; the others say in their site.yaml where theirs are.
    """
    console = standard_output()
    with friendly(debug, data_dir):
        from coterie.deploy.own_table import prepared_together
        from coterie.deploy.schema import Schema, read_schema
        from coterie.deploy.writing import Plan, write_federation
        from coterie.experiment import read_config
        from coterie.federation import build_federation
        from coterie.federation.datasets.sites import AT_SITES

        given = None if sites is None else [name.strip() for name in sites.split(",") if name.strip()]
        named = [f"sites.names={json.dumps(given)}"] if given and len(set(given)) == len(given) else []
        settled = read_config(config, [*(overrides or []), *named])
        federation, reason = None, ""
        try:
            federation = build_federation(settled.federation, seed=settled.seeds[0], data_dir=data_dir)
        except CoterieError as error:
            reason = str(error)
        if settled.federation.source == AT_SITES:
            reason = f"federation.source is {AT_SITES}"
        names = _names(given, settled, federation, reason)
        wanted = (
            read_schema(schema) if schema is not None else Schema.of(federation) if federation is not None else None
        )
        if wanted is None and prepared_together(settled.as_dict()) is None:
            hint = "; give one: --schema FILE" if settled.federation.source == AT_SITES else ""
            warnings.warn(f"No schema is written, so sites check less: {reason}{hint}", CoterieWarning, stacklevel=1)
        if schema is None and wanted is not None and wanted.computed:
            warnings.warn(
                "schema.yaml, which every site is given, holds means and standard deviations of the experiment's own "
                "data: give another one by --schema FILE, or let sites prepare their tables together "
                "(federation: {source: sites, preprocessing: federated, ...}), where they must not leave.",
                CoterieWarning,
                stacklevel=1,
            )
        plan = Plan(settled, names, address, port, wanted, federation, data_dir)
        write_federation(folder, plan, overwrite=overwrite)
        console.print(
            f"A federation of {len(names)} sites is in {escape(str(folder))}; its README.md says how to go on.",
            highlight=False,
        )


@deploy.command()
def check(
    site_yaml: Annotated[Path, typer.Argument(metavar="SITE_YAML", help="The site's own file.")],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="The experiment, to check the columns and the policy against it."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run; it decides which examples are for what.")] = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check a site's file and its data, at the site; nothing is sent.

    The data are compared with the schema.yaml beside the file or, where sites prepare their tables together, with
    columns.yaml; then it is listed what would leave the site before the first round. With --config the columns are
    those of an experiment, and what its model, methods and guard ask is compared with the site's policy. Exit code 2
    where something has to change: one sentence for each difference.
    """
    console = standard_output()
    with friendly(debug):
        from coterie.deploy.checking import check_site

        report = check_site(site_yaml, seed=seed, experiment=config)
        if as_json:
            print_json(report.as_dict())
        else:
            for sentence in report.differences:
                console.print(f"[bold red]differs:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
            if report.sizes:
                counted = ", ".join(f"{size:,} {part}" for part, size in report.sizes.items())
                console.print(f"{escape(report.client)}: {counted} examples", highlight=False)
            for column, told in report.leaves.items():
                console.print(
                    f"leaves before round 1: {escape(column)}: {escape(_told(told))}", highlight=False, soft_wrap=True
                )
            for remark in report.remarks:
                console.print(escape(remark), highlight=False, soft_wrap=True)
            if not report.schema:
                console.print("There is no schema.yaml beside it, so nothing was compared.", highlight=False)
            console.print(
                "[green]Ready.[/]" if not report.differences else f"{len(report.differences)} to change.",
                highlight=False,
            )
        if report.differences:
            raise typer.Exit(2)


@deploy.command()
def demo(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Where to write the federation; default: a temporary folder.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            metavar="CONFIG|PRESET",
            help="Another experiment; its clients are the sites. Default: four hospitals where their data are there, "
            "else rotated digits.",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that training may take.")] = 600.0,
    warm: Annotated[
        bool, typer.Option("--warm/--cold", help="Whether sites keep Python ready between messages.")
    ] = True,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a whole federation on this machine as real processes: server, four sites, TLS, keys.

    Every process is ended at the end, and by Ctrl-C.
    """
    console = standard_output()
    with friendly(debug, data_dir):
        from coterie.deploy.demo import demo_config, demonstrate
        from coterie.experiment import read_config

        changes = [*(overrides or []), *([f"rounds={rounds}"] if rounds is not None else [])]
        settled = read_config(config or demo_config(data_dir), changes)

        def say(line: str) -> None:
            if not quiet:
                console.print(escape(line), style="dim", highlight=False, soft_wrap=True)

        result = demonstrate(
            settled, folder, data_dir=data_dir, timeout=timeout, warm=warm and hasattr(os, "fork"), say=say
        )
        console.print(result.table())
        console.print(
            f"Everything about this run is in {escape(str(result.directory))}", highlight=False, soft_wrap=True
        )


def _told(told: list[Any]) -> str:
    """What a site tells of a column, in words."""
    *known, missing = told
    if len(known) == 1:
        return f"{', '.join(known[0]) or 'no category'}; {missing} missing"
    return f"{known[0]} number{'s' * (known[0] != 1)}, their sum and sum of squares; {missing} missing"


def _names(given: list[str] | None, config: Config, federation: Federation | None, reason: str) -> list[str]:
    """The names on the command line, else those of the experiment, else its clients."""
    if given is not None:
        return given
    if config.sites is not None:
        return list(config.sites.names)
    if federation is None:
        raise CoterieError(f"--sites is missing, and the experiment's own data do not say: {reason}")
    return list(federation.names)
