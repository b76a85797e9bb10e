"""The page itself: one file with everything in it."""

from __future__ import annotations

import base64
import gzip
import json
from contextlib import suppress
from importlib import resources
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, StrictUndefined

from coterie.errors import CoterieError
from coterie.reports.opened import OpenedRun
from coterie.reports.page.content import DETAILED_CLIENTS, content, summary_rows
from coterie.reports.page.summary import newcomers_of, summary_caption, summary_cells, summary_heads, verdict
from coterie.reports.words import divided_anew
from coterie.runs import NewcomersDirectory, RunDirectory, guard_sentences, load_guard
from coterie.runs.atomic import write_text

PARTS = "coterie.reports.page.parts"


def write_page(run: OpenedRun) -> None:
    """Write ``report.html`` into the run directory; raises CoterieError when that is impossible."""
    write_text(run.directory.report, page(run))


def page(run: OpenedRun) -> str:
    """The whole page as HTML. It needs no network, and shows what there is of a run that is not whole."""
    data, rows = content(run), summary_rows(run)
    show = _shown(run, data)
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_part("page.html"))
    return template.render(
        about=run.about,
        facts=_facts(run, data),
        verdict=[*verdict(rows), *_guard(run, run.directory, "Clients")],
        missing=run.missing,
        sections=_sections(show, data, newcomers := newcomers_of(_newcomers(run))),
        rows=summary_cells(rows),
        heads=summary_heads(rows),
        caption="One line a system; select a heading to sort.",
        explanation=summary_caption(rows),
        splits=[split for split in ("test", "validation") if data["curves"][split]],
        show=show,
        anew="" if run.divided_once else divided_anew(len(run.about.seeds)),
        described=data["described"],
        data_note=_data_note(run),
        newcomers=newcomers,
        kept=_guard(run, RunDirectory(run.directory.newcomers), "Newcomers"),
        failures=data["failures"],
        config=_text(run.directory.config),
        environment=_text(run.directory.environment),
        version=version("coterie"),
        css=_part("page.css"),
        data=_harmless(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        library=_library(),
        script="\n".join(_scripts()),
    )


def _shown(run: OpenedRun, data: dict[str, Any]) -> dict[str, bool]:
    """Which sections have something to show."""
    portrait = data["clients"]
    compared = [label for label in data["gains"] if label != data["about"]["reference"]]
    return {
        "curves": bool(data["curves"]["test"] or data["curves"]["validation"]),
        "gains": any(gain is not None for label in compared for gain in data["gains"][label]["gain"]),
        "links": bool(data["links"]),
        "data": run.portrait is not None,
        "features": bool(portrait.get("features")),
        "samples": bool(portrait.get("samples")),
        "strengths": bool(data["strengths"] or data["notes"] or any(f["joined"] == 1 for f in data["links"].values())),
        "client": bool(data["gains"]) and len(portrait["names"]) <= DETAILED_CLIENTS,
    }


def _sections(show: dict[str, bool], data: dict[str, Any], newcomers: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Links to the sections that the page has."""
    all_of_them = (
        ("summary", "Summary", True),
        ("learning", "Learning", show["curves"]),
        ("gain", "Who gains, who loses", show["gains"]),
        ("relations", "Who learns from whom", show["links"]),
        ("data-section", "Data", show["data"]),
        ("strength-section", "Personal strengths", show["strengths"]),
        ("one-client", "One client", show["client"]),
        ("newcomers", "Newcomers", newcomers is not None),
        ("failures", "Failures", data["failures"]["count"] > 0),
        ("setup", "How it was made", True),
    )
    return [(name, title) for name, title, there in all_of_them if there]


def _facts(run: OpenedRun, data: dict[str, Any]) -> str:
    """One line: how many clients, rounds and seeds."""
    about, k = run.about, len(data["clients"]["names"])
    seeds = f"{len(about.seeds)} seeds" if len(about.seeds) != 1 else "1 seed"
    source = f" of {run.portrait['source']}" if run.portrait and run.portrait.get("source") else ""
    return f"{k} clients{source}, {len(about.labels)} systems, {about.rounds} rounds, {seeds}"


def _data_note(run: OpenedRun) -> str:
    """Which data are shown."""
    if run.portrait is None:
        return ""
    if "similarity_mean" not in run.portrait:
        return "The data stay with the clients; only their numbers are known here."
    anew = "; other seeds may divide them differently" if not run.divided_once else ""
    return f"Training data as divided with the first seed{anew}." if len(run.about.seeds) > 1 else ""


def _guard(run: OpenedRun, decided: RunDirectory, who: str) -> list[str]:
    with suppress(CoterieError):
        return guard_sentences(load_guard(decided), run.about.label, who)
    return []


def _newcomers(run: OpenedRun) -> list[dict[str, Any]]:
    with suppress(CoterieError):
        return NewcomersDirectory(run.directory.newcomers).read_summary()
    return []


def _text(path: Any) -> str:
    """What a text file holds; empty where it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return str(path.read_text(encoding="utf-8"))
    return ""


def _part(name: str) -> str:
    return resources.files(PARTS).joinpath(name).read_text(encoding="utf-8")


def _scripts() -> list[str]:
    """The page's own scripts in order: their names begin with a number."""
    files = sorted(file.name for file in resources.files(PARTS).iterdir() if file.name.endswith(".js"))
    return [_part(name) for name in files]


def _library() -> str:
    """Plotly's JavaScript, compressed, as base64 text: a third of its size."""
    code = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(code, compresslevel=6, mtime=0)).decode()


def _harmless(text: str) -> str:
    """JSON that may stand inside a script element: a client called ``</script>`` ends nothing."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
