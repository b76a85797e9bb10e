"""Commands that list what there is: algorithms, datasets, presets."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from coterie.cli.arguments import AsJson, Debug
from coterie.cli.printing import cell, friendly, plain_table, print_json, standard_output
from coterie.errors import CoterieWarning


def algorithms(
    name: Annotated[str | None, typer.Argument(help="One method: all about it.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the methods, or explain one.

    With NAME: its idea and paper, what it sends and receives (measured on the spot), every option with its default and
    the paper's value, and where it differs from the paper.
    """
    console = standard_output()
    with friendly(debug):
        from coterie.experiment.catalogue import algorithm_cards

        cards = algorithm_cards(name)
        if as_json:
            print_json(cards if name is None else cards[0])
        elif name is None:
            table = plain_table("name", "method", "idea", "variants")
            for card in cards:
                table.add_row(card["name"], card["title"], escape(card["idea"]), ", ".join(card["variants"]))
            console.print(table)
            console.print("All about one: coterie algorithms NAME", style="dim", highlight=False)
        else:
            _print_card(console, cards[0])


def cite(
    names: Annotated[list[str], typer.Argument(metavar="NAME|RUN", help="Methods, or directories of runs.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print BibTeX entries of methods, or of all methods of a run.

    [bold]coterie cite fedora ditto >> thesis.bib[/] appends two. An entry that several methods share is there once.
    """
    with friendly(debug):
        from coterie.experiment.citing import cite as look_up

        entries, without = look_up(names)
        for name in without:
            warnings.warn(f"{name} has no paper to cite.", CoterieWarning, stacklevel=1)
        if as_json:
            print_json(entries)
        elif entries:
            sys.stdout.write("\n\n".join(entries.values()) + "\n")


def datasets(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the data sources, and the rules that divide them among clients."""
    console = standard_output()
    with friendly(debug):
        from coterie.federation import available_rules
        from coterie.federation.datasets import SOURCES

        listed = [SOURCES[name] for name in sorted(SOURCES)]
        sources = [{"name": source.name, "about": source.description, "files": source.files} for source in listed]
        rules = [{"name": name, "about": about} for name, about in available_rules().items()]
        if as_json:
            described = [{**row, "options": of.option_cards} for row, of in zip(sources, listed, strict=True)]
            print_json({"sources": described, "rules": rules})
            return
        for columns, rows in (
            (("source", "federation.source", "files, below the data directory"), sources),
            (("rule", "federation.partition.rule"), rules),
        ):
            table = plain_table(*columns)
            for row in rows:
                table.add_row(*(escape(text) for text in row.values()))
            console.print(table)
        for source in listed:
            if source.options is not None:
                console.print(_source_options(source.name, source.option_cards))


def _source_options(name: str, cards: list[dict[str, Any]]) -> Table:
    """The options of one source, which are keys of the section ``federation:``."""
    table = plain_table(f"option of {name}", "default", "federation.<option>")
    for card in cards:
        choices = f" ({' | '.join(map(str, card['choices']))})" if card["choices"] else ""
        default = "required" if card["required"] else cell(card["default"])
        table.add_row(card["name"], default, escape(card["meaning"] + choices))
    return table


def presets(
    name: Annotated[str | None, typer.Argument(help="One preset, NAME or NAME:fast: print its YAML.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the ready-made experiments with their cost, or print one as a start for your own.

    [bold]coterie presets quickstart > mine.yaml[/] gives a file to change and run. The cost is the time on two cores,
    of the published setting (full) and of a small one (fast).
    """
    console = standard_output()
    with friendly(debug):
        from coterie.presets import FAST, FULL, available_presets, find_preset

        if name is not None:
            preset = find_preset(name)
            if as_json:
                print_json({**_preset_row(preset), "size": preset.size, "yaml": preset.text})
            elif console.is_terminal:
                console.print(Syntax(preset.text.rstrip(), "yaml", background_color="default"))
            else:
                sys.stdout.write(preset.text)
            return
        found = available_presets()
        if as_json:
            print_json([_preset_row(preset) for preset in found])
            return
        table = plain_table("name", "experiment", FULL, FAST)
        for preset in found:
            table.add_row(preset.name, preset.description, preset.costs[FULL], preset.costs.get(FAST, ""))
        console.print(table)
        console.print(
            "Times on two cores. Run one: coterie run NAME, or NAME:fast. See one: coterie presets NAME",
            style="dim",
            highlight=False,
        )


def _preset_row(preset: Any) -> dict[str, Any]:
    return {"name": preset.name, "about": preset.description, "cost": dict(preset.costs)}


def _print_card(console: Console, card: dict[str, Any]) -> None:
    say = partial(console.print, highlight=False)
    say(f"[bold]{card['name']}[/]  {escape(card['title'])}: {escape(card['idea'])}")
    if card["paper"]:
        say(escape(f"{card['paper']}; BibTeX: coterie cite {card['name']}"))
    say()
    for line in card["about"].splitlines():
        say(escape(line))
    say(f"\nEvaluated: {escape(card['evaluated'])}")
    _print_traffic(console, card["traffic"])
    _print_options(console, card)
    if card["deviations"]:
        say("\n[bold]Differs from the paper or its authors' code[/]")
        for deviation in card["deviations"]:
            say(escape(f"- {deviation}"))
    if card["page"]:
        say(f"\nMore: {card['page']}", style="dim")


def _print_traffic(console: Console, traffic: dict[str, Any]) -> None:
    console.print("\n[bold]Traffic of a client[/], in models (Sigma = 1), measured", highlight=False)
    if traffic["failed"]:
        console.print(escape(f"not measured: {traffic['failed']}"), highlight=False)
        return
    several = len(traffic["rows"]) > 1
    table = plain_table(*(["variant"] if several else []), "when", "down", "up", "to peers", "besides")
    for variant, rows in traffic["rows"].items():
        for row in rows:
            amounts = (f"{row[way]:.3g}" for way in ("down", "up", "peers"))
            besides = ", ".join(f"{way} {size:.0f} bytes" for way, size in row["bytes"].items())
            table.add_row(*([variant] if several else []), row["when"], *amounts, besides)
    console.print(table)
    console.print(traffic["setting"], style="dim", highlight=False)


def _print_options(console: Console, card: dict[str, Any]) -> None:
    if not card["options"]:
        console.print("\nNo options.")
        return
    several = card["variants"] if len(card["variants"]) > 1 else []
    table = plain_table("option", *(several or ["default"]), "paper's value", "meaning")
    for option in card["options"]:
        defaults = {variant: option["variants"].get(variant, option["default"]) for variant in several or [""]}
        if option["name"] == "variant":
            defaults = {variant: variant or option["default"] for variant in defaults}
        values = " | ".join(map(str, option["choices"])) or option["range"]
        meaning = f"{option['meaning']} ({values})" if values else option["meaning"]
        table.add_row(option["name"], *map(cell, defaults.values()), escape(option["paper"]), escape(meaning))
    console.print()
    console.print(table)
