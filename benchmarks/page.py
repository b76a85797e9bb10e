"""The report page in a real browser: errors, requests, plots, accessibility, its size and the seconds until it answers.

It needs Chromium (``--browser PATH``), ``pip install playwright axe-core-python`` and one or more pages:

    python -m benchmarks.page runs/quickstart-1/report.html [--screenshots DIR] [--browser /usr/bin/chromium]

Or it makes runs of a given size without training anything, and looks at their pages:

    python -m benchmarks.page --clients 36 --rounds 500 --systems 8 --seeds 3
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from coterie.evaluation.protocol import Report
from coterie.reports import open_run
from coterie.reports.page import write_page
from coterie.runs import About, History, RunDirectory, save_relations
from coterie.runs.atomic import write_json

REPORT: Report = "best_val"


def made_up(folder: Path, clients: int, rounds: int, systems: int, seeds: int) -> Path:
    """A run directory of that size with random numbers: each round evaluated, the relations of two systems stored."""
    run, history, random = RunDirectory.create(folder, "made-up"), History(), np.random.default_rng(0)
    names = [f"client-{k:04d}" for k in range(clients)]
    n = random.integers(20, 400, clients)
    labels = {("local", ""): "local"} | {(f"method{i}", ""): f"method {i}" for i in range(1, systems)}
    sizes = {split: n.tolist() for split in ("train", "validation", "test")}
    About("made up", "classification", REPORT, rounds, tuple(range(seeds)), (), labels, ("local", "")).write(run)
    counts = random.multinomial(100, random.dirichlet(np.full(10, 0.3), clients)).tolist()
    portrait = {"source": "made-up", "task": "classification", "classes": 10, "feature_shape": [64], "names": names}
    write_json(run.federation, portrait | {"n": sizes, "columns": {}, "class_counts": counts})
    for position, (algorithm, variant) in enumerate(labels):
        for seed in range(seeds):
            level = random.normal(0.7 + 0.01 * position, 0.08, clients)
            for round in range(rounds + 1):
                values = np.clip(level * (1 - 0.9 ** (round + 1)) + random.normal(0, 0.01, clients), 0, 1)
                for split in ("validation", "test"):
                    history.add_clients(algorithm, variant, seed, round, split, names, n, "accuracy", values)
                sent = [{"phase": "train", "direction": way, "kind": "model", "bytes": 10**6} for way in ("up", "down")]
                history.add_ledger(algorithm, variant, seed, round, sent)
                history.add_timing(algorithm, variant, seed, round, "train", 0.1)
                if 0 < position < 3 and round % 5 == 0 and round:
                    matrix = random.dirichlet(np.full(clients, 0.1), clients).astype(np.float32)
                    save_relations(run, algorithm, variant, seed, round, names, {"weights": matrix})
    history.write(run)
    run.write_config("name: made-up\n")
    return folder


def look(page: Path, browser: str, screenshots: Path | None, width: int) -> dict[str, Any]:
    """What a browser says of a page at one width."""
    from axe_core_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    found: dict[str, Any] = {"page": str(page), "width": width, "MB": round(page.stat().st_size / 1e6, 2)}
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": width, "height": 900})
        errors: list[str] = []
        requests: list[str] = []
        tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        begin = time.perf_counter()
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("html[data-ready]", timeout=60_000)
        found["seconds"] = round(time.perf_counter() - begin, 2)
        plots = tab.locator(".plot:visible")
        empty = [
            plots.nth(i).get_attribute("id")
            for i in range(plots.count())
            if not plots.nth(i).locator("svg, canvas").count()
        ]
        found |= {
            "plots": plots.count(),
            "empty": empty,
            "wide": tab.evaluate("document.documentElement.scrollWidth > innerWidth"),
        }
        found |= _touched(tab)
        result = Axe().run(tab)
        found["axe"] = [f"{v['impact']}: {v['id']} ({len(v['nodes'])})" for v in result["violations"]]
        found["errors"], found["requests"] = (
            errors,
            [url for url in requests if not url.startswith(("file:", "data:", "blob:"))],
        )
        if screenshots is not None:
            screenshots.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=screenshots / f"{page.parent.name}-{width}.png", full_page=True)
        chromium.close()
    return found


def _touched(tab: Any) -> dict[str, Any]:
    """Whether sorting, the slider and hovering do something."""
    found: dict[str, Any] = {}
    rows = "[...document.querySelectorAll('#summary tbody tr')].map((row) => row.cells[1].dataset.value).join()"
    heads = tab.locator("#summary thead button")
    if heads.count() > 1:
        heads.nth(1).click()
        falling = tab.evaluate(rows)
        heads.nth(1).click()
        found["sorts"] = tab.evaluate(rows) != falling or tab.locator("#summary tbody tr").count() == 1
    if tab.locator("#links-round").count():
        slider = tab.locator("#links-round")
        slider.focus()
        before = tab.locator("#links-shown").text_content()
        tab.keyboard.press("ArrowLeft")
        tab.wait_for_timeout(200)
        found["slides"] = tab.locator("#links-shown").text_content() != before or slider.get_attribute("max") == "0"
    if tab.locator("#gain-bars .bars path").count():
        tab.locator("#gain-bars").scroll_into_view_if_needed()
        box = tab.locator("#gain-bars .bars path").first.bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + min(4, box["height"] / 2))
        tab.wait_for_timeout(300)
        found["hovers"] = tab.locator("#gain-bars .hovertext").count() > 0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--clients", type=int, default=36)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--systems", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--screenshots", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        pages = list(options.pages)
        if not pages:
            folder = made_up(Path(name) / "run", options.clients, options.rounds, options.systems, options.seeds)
            begin = time.perf_counter()
            write_page(open_run(folder))
            print(f"written in {time.perf_counter() - begin:.1f} s")
            pages = [folder / "report.html"]
        good = True
        for page in pages:
            for width in (1280, 390):
                found = look(page, options.browser, options.screenshots, width)
                print(found)
                serious = [text for text in found["axe"] if text.startswith(("serious", "critical"))]
                wrong = found["errors"] or found["requests"] or found["empty"] or found["wide"] or serious
                good = good and not wrong and all(found.get(key, True) for key in ("sorts", "slides", "hovers"))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
