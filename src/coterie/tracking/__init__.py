"""Trackers: TensorBoard, MLflow and Weights & Biases receive every number of a run, under the same names."""

from coterie.tracking.naming import flattened, metric_name
from coterie.tracking.sinks import check_libraries, make_sinks
from coterie.tracking.subject import Outcome, Sink, Subject, Track
from coterie.tracking.tracking import Tracking

__all__ = [
    "Outcome",
    "Sink",
    "Subject",
    "Track",
    "Tracking",
    "check_libraries",
    "flattened",
    "make_sinks",
    "metric_name",
]
