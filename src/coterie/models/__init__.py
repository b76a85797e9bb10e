"""Model factories and how a module's tensors lie in a row of Theta."""

from coterie.models import (  # noqa: F401  they enter their models in the factory
    auto,
    convolutions,
    perceptrons,
    published,
    recurrent,
    resnet,
)
from coterie.models.factory import ModelSpec, available_models, build_model
from coterie.models.rows import Layout, Models, stack_candidates, stack_rows
from coterie.models.stack import Stack, module_of

__all__ = [
    "Layout",
    "ModelSpec",
    "Models",
    "Stack",
    "available_models",
    "build_model",
    "module_of",
    "stack_candidates",
    "stack_rows",
]
