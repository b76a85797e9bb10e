"""Evaluation: metrics over clients, transfer against LOCAL, reporting protocols and the summary of a run."""

from coterie.evaluation.catalogue import (
    METRICS,
    Metric,
    all_metrics,
    further_metrics,
    gain_scale,
    main_metric,
    metric_of,
    title_of,
)
from coterie.evaluation.guard import Evidence, Judgement, evidence, judge
from coterie.evaluation.metrics import macro, rounds_to_target, weighted, worst, worst_decile
from coterie.evaluation.newcomers import summarise_newcomers
from coterie.evaluation.protocol import BestRound, Report, check_report, choose_round
from coterie.evaluation.reported import Reported, RunKey, System, default_label, reported
from coterie.evaluation.summary import summarise
from coterie.evaluation.tables import Tables, Task
from coterie.evaluation.transfer import Relative, align, individual_gain, ptr, ptr_mae, r_acc, r_mae

__all__ = [
    "METRICS",
    "BestRound",
    "Evidence",
    "Judgement",
    "Metric",
    "Relative",
    "Report",
    "Reported",
    "RunKey",
    "System",
    "Tables",
    "Task",
    "align",
    "all_metrics",
    "check_report",
    "choose_round",
    "default_label",
    "evidence",
    "further_metrics",
    "gain_scale",
    "individual_gain",
    "judge",
    "macro",
    "main_metric",
    "metric_of",
    "ptr",
    "ptr_mae",
    "r_acc",
    "r_mae",
    "reported",
    "rounds_to_target",
    "summarise",
    "summarise_newcomers",
    "title_of",
    "weighted",
    "worst",
    "worst_decile",
]
