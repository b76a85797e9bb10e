"""YAML as a person means it: 5e-5 is a number, and a key given twice is a mistake."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from coterie.errors import CoterieError


class _Loader(yaml.SafeLoader):
    """The safe loader with YAML 1.2 numbers and without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping; a key that stands there twice is refused instead of the last one winning."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a name", key_node.start_mark)
            if key != "<<" and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """The safe dumper with short lists and mappings on one line."""


# YAML 1.1, which PyYAML reads, takes 5e-5 for text because it has no dot; a text that looks so must then be quoted.
for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )


def _is_flat(values: Iterable[Any]) -> bool:
    return all(not isinstance(value, dict | list) or not value for value in values)


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=_is_flat(data))


def _represent_dict(dumper: yaml.SafeDumper, data: dict[Any, Any]) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=_is_flat(data.values()))


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(dict, _represent_dict)


def read_yaml(text: str, where: str) -> Any:
    """Parse one YAML document.

    Raises
    ------
    CoterieError
        The text is not valid YAML; the message names ``where``, the line and the column.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise CoterieError(f"{where}{place}: not valid YAML: {error.problem or error.context}.") from error
    except (RecursionError, ValueError) as error:
        text = "too deeply nested" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise CoterieError(f"{where}: not valid YAML: {text}.") from error
    except yaml.YAMLError as error:
        raise CoterieError(f"{where}: not valid YAML: {' '.join(str(error).split())}.") from error


def load_yaml(path: Path) -> Any:
    """Read a file that holds one YAML document.

    Raises
    ------
    CoterieError
        It cannot be read as text, or is not valid YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CoterieError(f"{path}: cannot be read as text ({type(error).__name__}).") from error
    return read_yaml(text, str(path))


def write_yaml(tree: Any) -> str:
    """Plain data as YAML text, keys in the given order."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
