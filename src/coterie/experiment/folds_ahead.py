"""Whether the folds of a guard can be trained, found out before hours of training are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.errors import CoterieError
from coterie.experiment.guarding import fold_experiment, guards, section
from coterie.experiment.setting import check_metric

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment


def check_folds(experiment: Experiment) -> None:
    """Divide the first seed's data into the folds of the guard, if any, and look at each of them.

    Raises
    ------
    CoterieError
        In one of them nobody validates, the metric is defined for nobody, or a class is not trained; it says what.
    """
    count = section(experiment.config).folds if guards(experiment.plan) else 0
    names = {system.algorithm for system in experiment.plan.systems if system.guarded}
    for index in range(count):
        fold = fold_experiment(experiment, index, names)
        try:
            federation = fold.federation(fold.config.seeds[0])
            if federation.validation.total == 0:
                raise CoterieError("no client has an example to validate on beside those to train on.")
            check_metric(fold.config, federation)
        except CoterieError as error:
            raise CoterieError(
                f"guard.folds: {count} cannot be had with these data: in fold {index + 1}, {error} Or lower "
                "guard.folds; 0 judges by the run's own validation examples."
            ) from error
