"""MLflow: a run of the same name and parameters in a local database, or at a server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.tracking.subject import Outcome, Subject

TAG = "coterie.identity"
"""By this tag a resumed run is found again."""

STATUS: Mapping[Outcome, str] = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""No reports to MLflow's makers, no lines of theirs among ours, and no minutes of retries; a user's own values stay."""

EVERY = 1.0
"""Seconds between two messages: rounds that are faster go together."""

MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""What one message may hold."""


def library(*, local: bool = True) -> Any:
    """The package mlflow, and what a ``local`` database needs; ``CoterieError`` where it is not installed."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    try:
        import mlflow

        if local:
            import alembic  # noqa: F401
            import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise CoterieError("tracking.mlflow needs MLflow: pip install 'coterie[mlflow]'.") from error
    return mlflow


class Mlflow:
    """Logs to the store at ``uri``, by default a database in ``folder``."""

    name = "MLflow"

    def __init__(self, folder: Path, experiment: str, uri: str | None) -> None:
        self._folder, self._experiment, self._uri = folder, experiment, uri

    @cached_property
    def _client(self) -> Any:
        if self._uri is None:
            self._folder.mkdir(parents=True, exist_ok=True)
        uri = self._uri or f"sqlite:///{(self._folder / 'mlflow.db').absolute().as_posix()}"
        return library(local=self._uri is None).MlflowClient(uri, registry_uri=uri)

    @cached_property
    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return str(found.experiment_id)
        place = (self._folder / "artifacts").absolute().as_uri() if self._uri is None else None
        return str(self._client.create_experiment(self._experiment, artifact_location=place))

    def begin(self, subject: Subject) -> _Run:
        """See `Sink`; a run is created where there is none, or where somebody has deleted it."""
        client, tags = self._client, {TAG: subject.identity, "coterie.run": subject.group}
        found = client.search_runs([self._experiment_id], f"tags.`{TAG}` = '{subject.identity}'")
        if found:
            client.update_run(found[0].info.run_id, status="RUNNING")
            return _Run(client, found[0])
        run = client.create_run(self._experiment_id, tags=tags, run_name=subject.name)
        entities = library(local=False).entities
        parameters = [entities.Param(key, str(value)) for key, value in subject.parameters.items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            client.log_batch(run.info.run_id, params=parameters[first : first + MOST_PARAMETERS])
        return _Run(client, run)


class _Run:
    """One run; MLflow would keep a second value for a round, so what is there already is not sent again."""

    def __init__(self, client: Any, run: Any) -> None:
        self._client, self._id = client, run.info.run_id
        self._known = {
            (name, metric.step) for name in run.data.metrics for metric in client.get_metric_history(self._id, name)
        }

        self._waiting: list[Any] = []
        self._sent = 0.0

    def log(self, round: int, values: Mapping[str, float]) -> None:
        now, metric = time.time(), library(local=False).entities.Metric
        self._waiting += [
            metric(name, value, int(1000 * now), round)
            for name, value in values.items()
            if (name, round) not in self._known
        ]
        if now - self._sent >= EVERY:
            self._send()
            self._sent = now

    def _send(self) -> None:
        for first in range(0, len(self._waiting), MOST_METRICS):
            self._client.log_batch(self._id, metrics=self._waiting[first : first + MOST_METRICS])
        self._waiting = []

    def end(self, outcome: Outcome) -> None:
        self._send()
        self._client.set_terminated(self._id, STATUS[outcome])
