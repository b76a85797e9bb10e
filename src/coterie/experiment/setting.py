"""From the configuration to what the engine wants to know."""

from __future__ import annotations

import difflib
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from coterie.config import Config
from coterie.engines import Participation, Settings
from coterie.engines.undefined import undefined
from coterie.errors import CoterieError, CoterieWarning, describe
from coterie.evaluation import further_metrics, main_metric, metric_of
from coterie.federation import Federation
from coterie.federation.federation import Task
from coterie.models.factory import ModelSpec, build_model
from coterie.models.precision import products_in
from coterie.privacy import Policy

if TYPE_CHECKING:
    from coterie.experiment.plan import Job


def resolve_device(config: Config) -> str:
    """``auto`` becomes the first GPU where there is one; a GPU that is not there is an error, unless actors have it.

    Raises
    ------
    CoterieError
        torch sees no such GPU.
    """
    device, count = config.device, _gpus()
    if device == "auto":
        return "cuda" if count else "cpu"
    if config.engine != "ray" and not _is_here(device):
        raise CoterieError(f"device: torch sees {count} GPUs, so there is no {device}: use --device cpu.")
    return device


def device_here(config: Config) -> str:
    """The device of what is done in this process and not at the actors of a cluster, who alone may have a GPU."""
    return config.device if config.engine != "ray" or _is_here(config.device) else "cpu"


def newcomers_settings(config: Config, job: Job) -> Settings:
    """The engine's settings for the newcomers of one job, who train in this process; a warning where it has no GPU."""
    settings, device = engine_settings(config, job), device_here(config)
    if device == settings.device:
        return settings
    warnings.warn(
        f"Newcomers train in this process, which has no {settings.device}: they use the CPU.",
        CoterieWarning,
        stacklevel=2,
    )
    return replace(settings, device=device, executor="auto")  # the one that was chosen suits a GPU


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _is_here(device: str) -> bool:
    return not device.startswith("cuda") or int(device.partition(":")[2] or 0) < _gpus()


def check_precision(config: Config) -> None:
    """Refuse a precision that the GPU of this process does not have; actors find out for themselves.

    Raises
    ------
    CoterieError
        Names the GPU.
    """
    if config.engine != "ray":
        products_in(config.precision, getattr(torch, config.dtype), torch.device(config.device))


def slow_precision(config: Config) -> str | None:
    """What to tell where mixed precision mostly costs time: on CPUs, of which few have units for it."""
    if config.precision == "full" or config.device != "cpu":
        return None
    return f"precision: {config.precision} is made for GPUs: most CPUs take many times as long as in full precision"


def check_roster(config: Config, federation: Federation) -> None:
    """Refuse names and numbers of clients that the federation does not have.

    Raises
    ------
    CoterieError
        Names the client or the number and what there is.
    """
    wanted = config.participation.clients
    if wanted is not None and wanted > federation.k:
        raise CoterieError(f"participation.clients is {wanted}, but the federation has {federation.k} clients.")
    known = set(federation.names)
    for round, names in config.absent.items():
        if round > config.rounds:
            raise CoterieError(f"absent names round {round}, but there are only {config.rounds} rounds.")
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, federation.names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"the first is called {federation.names[0]}."
                raise CoterieError(f"absent, round {round}: there is no client {name}: {hint}")


def sized(model: ModelSpec, federation: Federation) -> ModelSpec:
    """The model ``auto`` with what it wants to know of the data, unless that was given; any other as it is."""
    if model.name != "auto":
        return model
    data = federation.train
    # pictures have a scale and more axes
    codes = data.inputs.dtype == torch.uint8 and len(data.feature_shape) == 1 and data.scale == 1.0
    found = {"inputs": "codes" if codes else "numbers", "examples": int(data.n.median())}
    return ModelSpec(model.name, {**found, **model.options})


def check_metric(config: Config, federation: Federation) -> None:
    """Refuse metrics that the task does not have, and one to report in that the data define for no client.

    Raises
    ------
    CoterieError
        Names the metric, and why nobody has it.
    """
    further = further_metrics(config.metrics, config.metric, federation.task, federation.classes)
    metric = main_metric(federation.task, config.metric)
    split = {"best_val": "validation", "best_test": "test"}.get(config.report)
    found = undefined(federation, further)
    for where in ("test", *([split] if split is not None and split != "test" else [])):
        lacking = found.get(where, {}).get(metric, {})
        if len(lacking) == federation.k and metric in further:
            name, reason = next(iter(lacking.items()))
            what = "nothing can be reported in it" if where == "test" else "no round can be chosen by it"
            raise CoterieError(
                f"metric: {metric} is undefined for every client ({name}: {reason}), so {what}: choose another metric."
            )


def check_targets(config: Config, task: Task) -> None:
    """Refuse targets that nobody can reach in the metric in which the run is reported.

    Raises
    ------
    CoterieError
        Names the first, and the limits.
    """
    metric = main_metric(task, config.metric)
    kind = metric_of(metric)
    lowest, highest = kind.bounds
    if beyond := [target for target in config.targets if not lowest <= target <= highest]:
        raise CoterieError(f"targets: {beyond[0]:g} cannot be reached in {metric}: give numbers {kind.limits}.")


def check_model(model: ModelSpec, federation: Federation) -> None:
    """Let the model predict two examples, before anything is written or trained.

    Raises
    ------
    CoterieError
        It cannot be built, does not take these inputs, or gives something else than one output a class (or target).
    """
    shape = federation.feature_shape
    built = build_model(model.name, shape, federation.classes, federation.task, **model.options).eval()
    inputs, _ = federation.train.batch(federation.train.offsets[0] + torch.zeros(2, dtype=torch.int64))
    try:
        with torch.no_grad():
            outputs = built(inputs)
    except Exception as error:
        raise CoterieError(f"model '{model.name}' does not take inputs of shape {shape}: {describe(error)}") from error
    found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if found != (2, federation.classes):
        per = "class" if federation.task == "classification" else "target"
        raise CoterieError(
            f"model '{model.name}' gives {found} for a batch of 2 examples, but one output for each {per} is expected: "
            f"(2, {federation.classes})."
        )


def engine_settings(config: Config, job: Job) -> Settings:
    """The engine's settings for one job."""
    return Settings(
        rounds=config.rounds,
        participation=Participation(**config.participation.model_dump(exclude_none=True)),
        evaluate_every=config.evaluate_every,
        training=job.system.training,
        seed=job.seed,
        device=config.device,
        dtype=config.dtype,
        precision=config.precision,
        chunk=config.chunk,
        executor=config.executor,
        threads=config.threads,
        workers=config.workers,
        client_memory=config.client_memory,
        buffers=config.buffers,
        absent={round: tuple(names) for round, names in config.absent.items()},
        keep_best=config.report,
        metric=config.metric,
        metrics=config.metrics if config.metrics == "auto" else tuple(config.metrics),
        keep_models=config.save_models or config.save_losses,
        privacy=None if config.privacy is None else Policy(**config.privacy.model_dump(exclude_none=True)),
        unlabelled_newcomers=config.newcomers is not None and False in config.newcomers.ways,
    )
