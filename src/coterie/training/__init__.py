"""What a client does locally: batches, losses, gradients, optimisers and fitting, for k clients at once."""

from coterie.training.batches import Batch, BatchPlan, SequentialPlan
from coterie.training.fit import Fitted, Step, batch_gradient, fit, own_steps
from coterie.training.losses import Objective, cross_entropy, objective_of, squared_error
from coterie.training.measure import absolute_error, full_gradient, hits, in_units, means, per_example
from coterie.training.memory import Given, Memories, Memory, Nothing
from coterie.training.owner import adam_rows
from coterie.training.settings import ProxPlace, Schedule, TrainingSettings

__all__ = [
    "Batch",
    "BatchPlan",
    "Fitted",
    "Given",
    "Memories",
    "Memory",
    "Nothing",
    "Objective",
    "ProxPlace",
    "Schedule",
    "SequentialPlan",
    "Step",
    "TrainingSettings",
    "absolute_error",
    "adam_rows",
    "batch_gradient",
    "cross_entropy",
    "fit",
    "full_gradient",
    "hits",
    "in_units",
    "means",
    "objective_of",
    "own_steps",
    "per_example",
    "squared_error",
]  # fmt: skip
