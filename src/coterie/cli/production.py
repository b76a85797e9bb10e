"""Commands for after training: export, predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from coterie.cli.arguments import AsJson, Debug
from coterie.cli.printing import friendly, print_json, standard_output
from coterie.errors import CoterieError

Algorithm = Annotated[
    str | None,
    typer.Option(
        "--algorithm", "-a", help="A method of RUN: name, label or name-variant; default: the only one besides LOCAL."
    ),
]
Seed = Annotated[int | None, typer.Option(help="The run's seed; default: the first.")]


def export(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or a folder that coterie adapt has made.")
    ],
    client: Annotated[str, typer.Option(help="The client's name, or all.")],
    algorithm: Algorithm = None,
    seed: Seed = None,
    format: Annotated[
        str, typer.Option(help="state_dict, torchscript, torch-export, onnx, or all that can be written here.")
    ] = "all",
    logits: Annotated[bool, typer.Option("--logits", help="Classes get logits instead of probabilities.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder; default: RUN/exports/<system>-seed<k>-<client>."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a client's model as files for production, with its preprocessing inside and a model card.

    Each file was compared with the model before it counts: it gives the same answers.
    """
    console = standard_output()
    with friendly(debug):
        from coterie.production import export as write

        results = write(directory, client, algorithm=algorithm, seed=seed, format=format, logits=logits, output=output)
        if as_json:
            print_json(
                [
                    {"client": one.client, "system": one.system, "seed": one.seed, "directory": str(one.directory),
                     "files": one.files, "remarks": one.remarks}
                    for one in results
                ]
            )  # fmt: skip
            return
        for remark in dict.fromkeys(remark for one in results for remark in one.remarks):
            console.print(escape(remark), highlight=False, soft_wrap=True)
        for one in results:
            text = f"{one.client}: {one.system}, seed {one.seed}: {', '.join(one.files)} in {one.directory}"
            console.print(escape(text), highlight=False, soft_wrap=True)


def predict(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN|EXPORT", help="A run directory, or a folder that coterie export has written.")
    ],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A table (.csv, .parquet), an .npz with x, or a folder of pictures.")
    ],
    client: Annotated[str | None, typer.Option(help="The client; an export has only one.")] = None,
    algorithm: Algorithm = None,
    seed: Seed = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The answers: .csv, .csv.gz or .parquet; default: predictions.csv."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Predict new data with a client's model: one row an input, with its class and probabilities, or its values.

    Data that the model does not take are refused, with one sentence for each difference.
    """
    console = standard_output()
    with friendly(debug):
        from coterie.federation.raw_table import TABLES, is_table
        from coterie.production import predict as answer
        from coterie.runs.atomic import atomic_path
        from coterie.runs.directory import refuse_results

        if as_json and output is not None:
            raise CoterieError(f"--json prints the answers, and --output {output} writes them: give one of them.")
        output = output or Path("predictions.csv")
        if not is_table(output):
            raise CoterieError(f"--output {output}: answers are a table: end its name in {', '.join(TABLES)}.")
        if not output.parent.is_dir():
            raise CoterieError(f"--output {output}: there is no folder {output.parent}.")
        if not as_json:
            refuse_results(output)
            if output.exists() and data.exists() and output.samefile(data):
                raise CoterieError(f"{output} is the table that is read, and would be lost; choose another --output.")
        answers = answer(directory, client, data, algorithm=algorithm, seed=seed)
        if as_json:
            print_json(answers.to_dict("records"))
            return
        with atomic_path(output) as temporary:
            if output.name.lower().endswith(".parquet"):
                answers.to_parquet(temporary, index=False)
            else:
                answers.to_csv(temporary, index=False, compression="gzip" if output.suffix.lower() == ".gz" else None)
        console.print(f"{len(answers)} predictions are in {escape(str(output))}", highlight=False, soft_wrap=True)
