"""The model card: what an exported model predicts, from what, how well, and how to use it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import pandas as pd
import torch

from coterie.errors import CoterieError
from coterie.evaluation.protocol import choose_round
from coterie.experiment.plan import REFERENCE
from coterie.federation.raw_table import may_be_missing
from coterie.production.building import heard
from coterie.production.choice import Chosen
from coterie.production.formats import Format, is_mixture
from coterie.production.graph import Served
from coterie.production.preprocessing import Preprocessing
from coterie.runs import About, read_model
from coterie.runs.directory import system_folder

MEANING = {
    "probabilities": "the probability of each class; the rows add up to 1",
    "logits": "one logit a class; softmax makes them probabilities",
    "values": "the predicted value of each target",
}


def card(chosen: Chosen, preprocessing: Preprocessing, module: Served, formats: Sequence[Format]) -> str:
    """The text of ``README.md``; it names no folder of this machine."""
    parts = [
        f"# Model of {preprocessing.client}",
        _summary(chosen, preprocessing, module),
        "## Inputs",
        _inputs(preprocessing),
        "## Outputs",
        _outputs(preprocessing),
        "## How good it is",
        _quality(chosen),
        "## How to use it",
        _use(chosen, preprocessing, module, formats),
        "## Made with",
        _versions(chosen),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(chosen: Chosen, preprocessing: Preprocessing, module: Served) -> str:
    facts = chosen.facts
    what = "the class" if preprocessing.task == "classification" else "the value"
    named = [preprocessing.target] if isinstance(preprocessing.target, str) else preprocessing.target or []
    target = f" of {', '.join(f'`{name}`' for name in named)}" if named else ""
    kind = f"mixture of {len(heard(facts['mixture']))} models" if is_mixture(module) else "model"
    sizes = facts.get("examples", {})
    rows = {
        "predicts": f"{what}{target} ({preprocessing.task})",
        "client": preprocessing.client,
        "method": preprocessing.label + _kept(chosen),
        "seed": str(preprocessing.seed),
        "round": "unknown" if preprocessing.round is None else str(preprocessing.round),
        "model": f"{kind} `{facts['model']['name']}`, {sum(p.numel() for p in module.model.parameters()):,} parameters",
        **{f"{part} examples": str(sizes[part]) for part in ("train", "validation", "test") if part in sizes},
    }
    return "It was trained by personalised federated learning, for this client's data.\n\n" + _table(
        ["", ""], [[name, value] for name, value in rows.items()]
    )


def _kept(chosen: Chosen) -> str:
    """Of a guarded method, whose file is a copy of the model that won: which of the two this client keeps."""
    source = str(chosen.facts["algorithm"])
    if system_folder(source, str(chosen.facts["variant"])) == chosen.system:
        return ""
    return (
        f": this client keeps {'the model that it trained alone' if source == REFERENCE else 'its personalised model'}"
    )


def _inputs(preprocessing: Preprocessing) -> str:
    if preprocessing.features is not None:
        rows = []
        for number, feature in enumerate(preprocessing.features):
            if feature.kind == "number":
                made = f"number; (x - {feature.mean:g}) / {feature.std:g}"
            else:
                made = "category: " + ", ".join(f"{i} = {value}" for i, value in enumerate(feature.values))
            rows.append([str(number), f"`{feature.name}`", made, "NaN" if may_be_missing(feature) else "no"])
        return (
            f"`inputs`: float64 `(n, {len(rows)})`, one raw column a feature in this order. A category is its number, "
            "-1 for any other value. Standardisation and coding are part of the model.\n\n"
            + _table(["column", "name", "what", "may be missing"], rows)
        )
    shape = ", ".join(map(str, preprocessing.shape))
    text = f"`inputs`: {preprocessing.dtype} `(n, {shape})`, as stored: "
    text += "bytes 0 to 255. " if preprocessing.dtype == "uint8" else "no scaling beforehand. "
    if preprocessing.mean:
        mean, std = (", ".join(f"{x:g}" for x in values) for values in (preprocessing.mean, preprocessing.std))
        text += f"The model itself takes x times {preprocessing.scale:g}, less the mean {mean}, divided by {std}."
    elif preprocessing.scale != 1:
        text += f"The model itself multiplies them by {preprocessing.scale:g}."
    return text


def _outputs(preprocessing: Preprocessing) -> str:
    names = "\n".join(f"{number}. {name}" for number, name in enumerate(preprocessing.labels))
    size = len(preprocessing.labels)
    scaling = ""
    if preprocessing.target_std:
        mean, std = (
            ", ".join(f"{x:g}" for x in values) for values in (preprocessing.target_mean, preprocessing.target_std)
        )
        scaling = f" They are in the unit of the data; the bare network of `model.pt` gives (value - {mean}) / {std}."
    return f"`{preprocessing.output}`: `(n, {size})`, {MEANING[preprocessing.output]}.{scaling} Columns:\n\n{names}"


def _quality(chosen: Chosen) -> str:
    """The client's test metrics at the reported round, beside LOCAL's."""
    own, alone = _metrics(chosen)
    if not own:
        return "The run has no test results of this client."
    rows = [
        [metric, f"{value:.4g}", f"{alone[metric]:.4g}" if metric in alone else "-"] for metric, value in own.items()
    ]
    return "On this client's test data, and what training alone (LOCAL) reaches there:\n\n" + _table(
        ["metric", "this model", "LOCAL"], rows
    )


def _of_local(chosen: Chosen) -> Mapping[str, float]:
    """What the model that a real site has trained alone reaches in the same run; empty where it is not there."""
    try:
        found: Mapping[str, float] = read_model(
            chosen.place.models / REFERENCE / f"seed{chosen.seed}", chosen.client
        ).facts["results"]
    except (CoterieError, KeyError):
        return {}
    return found


def _metrics(chosen: Chosen) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """By metric; empty where the run does not know."""
    if "results" in chosen.facts:  # a real site has measured its own
        return chosen.facts["results"], _of_local(chosen)
    run, round = chosen.place.run, chosen.facts.get("round")
    if run is None or chosen.place.path.resolve() != run.path.resolve() or round is None:  # newcomers are no members
        return {}, {}
    try:
        table = pd.read_parquet(run.clients, filters=[("seed", "==", chosen.seed), ("phase", "==", "evaluate")])
        about = About.read(run)
        alone = table[table["algorithm"] == REFERENCE]
        reference = choose_round(alone, about.report, metric=about.metric)
        facts = chosen.facts
        own = table[(table["algorithm"] == facts["algorithm"]) & (table["variant"] == facts["variant"])]
    except (CoterieError, OSError, ValueError, KeyError):
        return {}, {}
    return _of(own, chosen.client, int(round)), _of(alone, chosen.client, reference)


def _of(table: pd.DataFrame, client: str, round: int) -> dict[str, float]:
    rows = table[(table["client"] == client) & (table["round"] == round) & (table["split"] == "test")]
    return dict(zip(rows["metric"].astype(str), rows["value"].astype(float), strict=True))


def _use(chosen: Chosen, preprocessing: Preprocessing, module: Served, formats: Sequence[Format]) -> str:
    zeros = f"({', '.join(map(str, (1, *preprocessing.shape)))})"
    data = {
        "torch": f"torch.zeros({zeros}, dtype=torch.{preprocessing.dtype})",
        "numpy": f'numpy.zeros({zeros}, dtype="{preprocessing.dtype}")',
    }
    codes: dict[Format, list[str]] = {
        "onnx": [
            "import numpy, onnxruntime",
            'session = onnxruntime.InferenceSession("model.onnx")',
            f"inputs = {data['numpy']}  # your own",
            f'{preprocessing.output} = session.run(None, {{"inputs": inputs}})[0]',
        ],
        "torch-export": [
            "import torch",
            'model = torch.export.load("model.pt2").module()',
            f"inputs = {data['torch']}  # your own",
            f"{preprocessing.output} = model(inputs)",
        ],
        "torchscript": [
            "import torch",
            'model = torch.jit.load("model.ts.pt")',
            f"inputs = {data['torch']}  # your own",
            f"{preprocessing.output} = model(inputs)",
        ],
    }
    texts = [
        f"With `{format}`:\n\n```python\n" + "\n".join(codes[format]) + "\n```" for format in codes if format in formats
    ]
    if texts:
        texts.append("Without code: `coterie predict FOLDER DATA`, where FOLDER is this one.")
    if "state_dict" in formats:
        what = "the mixture: `candidates.<i>.<name>` and `weights`" if is_mixture(module) else "the bare network"
        texts.append(
            f"`model.pt` is the state dict of {what} `{chosen.facts['model']['name']}`, without preprocessing; "
            '`torch.load("model.pt", weights_only=True)` reads it.'
        )
    return "\n\n".join(texts)


def _versions(chosen: Chosen) -> str:
    text = f"Exported by coterie {version('coterie')} with torch {torch.__version__}."
    if chosen.place.run is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            made: dict[str, Any] = json.loads(chosen.place.run.environment.read_text(encoding="utf-8"))
            text += f" Trained by coterie {made['coterie']} with torch {made['packages']['torch']}."
    return text


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
