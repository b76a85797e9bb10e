"""Which setting is tried next: it follows from the space, the seed and the trials so far, so that nothing need be kept.

An interrupted search therefore goes on as if nothing had happened.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from coterie.config.schema import RangeConfig
from coterie.errors import CoterieError
from coterie.training.keys import generator
from coterie.tuning.space import Dimension, Space
from coterie.tuning.trial import Trial

Values = dict[str, Any]
DRAWS = 200
"""So often a setting that was tried already is drawn anew; after that the space counts as exhausted."""


def check_search(search: str, spaces: Sequence[Space], trials: int | None) -> None:
    """Find out before the first trial whether a search can be done.

    Raises
    ------
    CoterieError
        A grid over a range, or one of more points than trials; or Optuna is not installed.
    """
    if search == "optuna":
        _optuna()
    if search != "grid":
        return
    for space in spaces:
        for key, dimension in space.dimensions.items():
            if isinstance(dimension, RangeConfig):
                raise CoterieError(
                    f"tune.space.{key} is a range, which has no grid: list its values, or choose the search random or "
                    "optuna."
                )
        points = math.prod(len(dimension) for dimension in space.dimensions.values() if isinstance(dimension, list))
        if trials is not None and points > trials:
            raise CoterieError(
                f"the grid of {space.method} has {points} points, but tune.trials is {trials}: list fewer values, "
                "allow more trials, or choose the search random."
            )


def propose(search: str, space: Space, earlier: Sequence[Trial], seed: int) -> Values | None:
    """The next setting of a method, given its earlier trials; None where nothing is left."""
    number = len(earlier)
    if search == "grid":
        grid = itertools.product(*(d for d in space.dimensions.values() if isinstance(d, list)))
        point = next(itertools.islice(grid, number, None), None)
        return None if point is None else dict(zip(space.dimensions, point, strict=True))
    if search == "random":
        tried = [trial.values for trial in earlier]
        draw = generator(seed, number, f"tune {space.method}")
        drawn = ({key: _drawn(d, draw) for key, d in space.dimensions.items()} for _ in range(DRAWS))
        return next((values for values in drawn if values not in tried), None)
    return _suggested(space, earlier, seed + number)


def _drawn(dimension: Dimension, draw: Any) -> Any:
    """One of the listed values, or a number of the range, uniformly (in the logarithm where so wanted)."""
    if isinstance(dimension, list):
        return dimension[int(draw.integers(len(dimension)))]
    low, high = dimension.low, dimension.high
    if dimension.whole and not dimension.log:
        return int(draw.integers(int(low), int(high) + 1))
    value = math.exp(draw.uniform(math.log(low), math.log(high))) if dimension.log else draw.uniform(low, high)
    return min(max(round(value), int(low)), int(high)) if dimension.whole else float(f"{value:.4g}")


def _suggested(space: Space, earlier: Sequence[Trial], seed: int) -> Values:
    """What Optuna's tree-structured Parzen estimator tries next."""
    optuna = _optuna()
    distributions = {key: _distribution(optuna, dimension) for key, dimension in space.dimensions.items()}
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for trial in earlier:
        params = {
            key: dimension.index(trial.values[key]) if isinstance(dimension, list) else trial.values[key]
            for key, dimension in space.dimensions.items()
        }
        # a failed trial counts as worse than every other one: that is what Optuna makes of a pruned one
        state = optuna.trial.TrialState.PRUNED if trial.score is None else optuna.trial.TrialState.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=distributions, value=trial.score, state=state)
        )
    asked = study.ask(distributions).params
    return {
        key: dimension[asked[key]] if isinstance(dimension, list) else asked[key]
        for key, dimension in space.dimensions.items()
    }


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    """Listed values by position, so that they may be anything."""
    if isinstance(dimension, list):
        return optuna.distributions.CategoricalDistribution(range(len(dimension)))
    if dimension.whole:
        return optuna.distributions.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise CoterieError(
            "the search optuna needs the package optuna: install it with pip install 'coterie[tune]', or choose the "
            "search random."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
