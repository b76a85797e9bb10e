"""An algorithm stays as short as its pseudo code: about 60 statements, without options and without what newcomers need."""

from __future__ import annotations

import ast
import inspect

import pytest

from coterie.contract import Algorithm, available_algorithms

ABOUT_SIXTY = 70
NOT_COUNTED = {"check", "offer", "personal", "adapt", "newcomer", "relations", "notes", "first_model"}
CLASSES = {
    owner
    for cls in available_algorithms().values()
    for owner in cls.__mro__
    if owner.__module__.startswith("coterie.algorithms")
}


def statements(cls: type[Algorithm]) -> int:
    """Statements in the bodies of the methods that this class itself defines, without docstrings."""
    (tree,) = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    methods = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name not in NOT_COUNTED]
    count = sum(isinstance(node, ast.stmt) for method in methods for node in ast.walk(method))
    return count - sum(1 + (ast.get_docstring(method) is not None) for method in methods)


@pytest.mark.parametrize("cls", sorted(CLASSES, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_it_is_short(cls: type[Algorithm]) -> None:
    assert statements(cls) <= ABOUT_SIXTY
