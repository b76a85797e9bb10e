"""Partition rules, one file a rule.

Every module of this package is imported, so a new rule is a new file.
"""

from importlib import import_module
from pkgutil import iter_modules

from coterie.federation.partition.rule import (
    RULES,
    Amount,
    Division,
    Rule,
    Sizes,
    available_rules,
    register_rule,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["RULES", "Amount", "Division", "Rule", "Sizes", "available_rules", "register_rule"]
