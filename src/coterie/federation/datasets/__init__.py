"""Sources of examples, one file a source.

Every module of this package is imported, so a new source is a new file.
"""

from importlib import import_module
from pkgutil import iter_modules

from coterie.federation.datasets.registry import (
    SOURCES,
    Options,
    Source,
    available_sources,
    find_source,
    register_generator,
    register_source,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "SOURCES",
    "Options",
    "Source",
    "available_sources",
    "find_source",
    "register_generator",
    "register_source",
]
