"""Commands that list what there is: algorithms, datasets, presets."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from coterie.cli.arguments import AsJson, Debug
from coterie.cli.printing import cell, friendly, plain_table, print_json, standard_output


def algorithms(
    name: Annotated[str | None, typer.Argument(help="One method, with its options.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the methods, or explain one.

    With NAME: its paper, its variants and every option with its default.
    """
    console = standard_output()
    with friendly(debug):
        from coterie.experiment.catalogue import algorithm_cards

        cards = algorithm_cards(name)
        if as_json:
            print_json(cards if name is None else cards[0])
        elif name is None:
            table = plain_table("name", "method", "variants")
            for card in cards:
                table.add_row(card["name"], card["title"], ", ".join(card["variants"]))
            console.print(table)
            console.print("Options of one: coterie algorithms NAME", style="dim", highlight=False)
        else:
            _print_card(console, cards[0])


def datasets(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the data sources, and the rules that divide them among clients."""
    console = standard_output()
    with friendly(debug):
        from coterie.federation import available_rules
        from coterie.federation.datasets import SOURCES

        sources = [{"name": n, "about": SOURCES[n].description, "files": SOURCES[n].files} for n in sorted(SOURCES)]
        rules = [{"name": name, "about": about} for name, about in available_rules().items()]
        if as_json:
            print_json({"sources": sources, "rules": rules})
            return
        for columns, rows in (
            (("source", "federation.source", "files, below the data directory"), sources),
            (("rule", "federation.partition.rule"), rules),
        ):
            table = plain_table(*columns)
            for row in rows:
                table.add_row(*(escape(text) for text in row.values()))
            console.print(table)


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
    console.print(f"[bold]{card['name']}[/]  {escape(card['title'])}")
    for line in (card["paper"], "", *card["about"].splitlines()):
        console.print(escape(line), highlight=False)
    if card["evaluated"]:
        console.print(f"\nEvaluated: {escape(card['evaluated'])}", highlight=False)
    if not card["options"]:
        console.print("\nNo options.")
        return
    table = plain_table("option", "type", "default", *card["variants"])
    for option in card["options"]:
        values = (cell(option["variants"].get(variant)) for variant in card["variants"])
        table.add_row(option["name"], escape(option["type"]), cell(option["default"]), *values)
    console.print()
    console.print(table)
