"""Turn a validation error into one sentence: which key, what was expected, what was found, what to do.

Pydantic reports a location that mixes keys of the input with names of union members. The keys a person wrote
are found by following the location through the input; the keys that would have been right, by following it
through the schema.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from coterie.federation.config import FederationConfig, section_for

EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a file name",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
    "mapping": "a mapping of keys to values",
    "finite": "a finite number",
    "is": "an instance of the right kind",
}
"""What a value should have been, by the first word of pydantic's error type."""

_KINDS = {f"{kind}_{end}" for kind in EXPECTED for end in ("type", "parsing", "number")} | {
    "int_from_float",
    "is_instance_of",
    "literal_error",
    "model_attributes_type",
}

LIMITS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def explain(error: ValidationError, data: Any, schema: type[BaseModel]) -> tuple[str, str]:
    """The first mistake of a validation error.

    Parameters
    ----------
    error : ValidationError
        What validating ``data`` raised.
    data : Any
        The input as it was read.
    schema : type[BaseModel]
        The model it was validated against.

    Returns
    -------
    tuple[str, str]
        The dotted key and the sentence about it, without a full stop.
    """
    errors = error.errors(include_url=False)
    # A misspelt key often also leaves another one missing: the misspelling is the cause.
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    key = dotted(first["loc"], data)
    if first["type"] == "extra_forbidden":
        return key, _unknown(key, first["loc"], data, schema)
    if first["type"].startswith("union_tag"):
        key = f"{key}.{str(first['ctx']['discriminator']).strip(chr(39))}"
    # A value that fits no member of a union has one error a member: say them all in one breath.
    same = [item for item in errors if dotted(item["loc"], data) == key and item["type"] in _KINDS]
    if len(same) > 1:
        expected = " or ".join(dict.fromkeys(_expected(item) for item in same))
        return key, f"{key} must be {expected}, not {describe(first['input'])}"
    return key, _wrong(key, first)


def dotted(location: Sequence[int | str], data: Any) -> str:
    """The location as a person writes it, ``algorithms[2].name``, without names of union members."""
    text, current = "", data
    for position, part in enumerate(location):
        if isinstance(part, int):
            text += f"[{part}]"
            current = current[part] if isinstance(current, Sequence) and len(current) > part else None
        elif isinstance(current, Mapping) and part in current:
            text += f".{part}"
            current = current[part]
        elif position == len(location) - 1 and isinstance(current, Mapping | None):
            text += f".{part}"
    return text.removeprefix(".")


def nearest(word: str, options: Sequence[str]) -> str | None:
    """The most similar option, or None when none is similar."""
    found = difflib.get_close_matches(word.lower(), options, n=1, cutoff=0.5)
    return found[0] if found else None


def keys_of(schema: type[BaseModel], prefix: str = "") -> list[str]:
    """All dotted keys of a schema, outer ones first."""
    inner: list[str] = []
    for name, field in schema.model_fields.items():
        for model in models_in(field.annotation):
            inner += keys_of(model, f"{prefix}{name}.")
    return [prefix + name for name in schema.model_fields] + list(dict.fromkeys(inner))


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models inside an annotation such as ``A | B | None`` or ``list[A]``."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in get_args(annotation) for model in models_in(part)]


def _unknown(key: str, location: Sequence[int | str], data: Any, schema: type[BaseModel]) -> str:
    parent, _, word = key.rpartition(".")
    valid = _valid_keys(location[:-1], data, schema)
    near = nearest(word, valid)
    if near is not None:
        return f"unknown key {key}: did you mean {parent + '.' if parent else ''}{near}?"
    elsewhere = [full for full in keys_of(schema) if full.rpartition(".")[2] == word]
    # a key of another rule in the same place would be no help
    if elsewhere and key not in elsewhere:
        return f"unknown key {key}: did you mean {elsewhere[0]}?"
    return f"unknown key {key}: the keys {'of ' + parent if parent else 'here'} are {', '.join(valid)}"


def _valid_keys(location: Sequence[int | str], data: Any, schema: type[BaseModel]) -> list[str]:
    models: list[type[BaseModel]] = [schema]
    for part in location:
        data = _inside(data, part)
        if isinstance(part, int):
            continue
        inner = [
            found
            for model in models
            if part in model.model_fields
            for found in models_in(model.model_fields[part].annotation)
        ]
        models = inner or [model for model in models if _is_tagged(model, part)] or models
        models = [section_for(data) if model is FederationConfig else model for model in models]
    return list(dict.fromkeys(name for model in models for name in model.model_fields))


def _inside(data: Any, part: int | str) -> Any:
    """One step of a location through the input; the name of a union member is no step."""
    if isinstance(data, Mapping):
        return data.get(part, data)
    return data[part] if isinstance(part, int) and isinstance(data, Sequence) and len(data) > part else data


def _is_tagged(model: type[BaseModel], tag: str) -> bool:
    """Whether ``tag``, as it stands in an error location, names this member of a union."""
    literals = [get_args(field.annotation) for field in model.model_fields.values() if _is_literal(field.annotation)]
    return model.__name__ == tag or any(tag in values for values in literals)


def _is_literal(annotation: Any) -> bool:
    return get_origin(annotation) is Literal


def _wrong(key: str, error: ErrorDetails) -> str:
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    name = key or "the configuration"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "value_error":
        problem = str(context["error"]).rstrip(".")
        return f"{key}: {problem}" if key else problem
    if kind == "literal_error":
        expected = str(context["expected"]).replace("'", "")
        near = nearest(value, expected.replace(" or ", ", ").split(", ")) if isinstance(value, str) else None
        return f"{name} must be {expected}, not {describe(value)}" + (f": did you mean {near}?" if near else "")
    if kind == "union_tag_invalid":
        tag, tags = context["tag"], str(context["expected_tags"]).replace("'", "")
        near = nearest(str(tag), tags.split(", "))
        return f"{name} must be one of {tags}, not {describe(tag)}" + (f": did you mean {near}?" if near else "")
    if kind == "union_tag_not_found":
        return f"{name} is missing"
    if kind in LIMITS:
        words, limit = LIMITS[kind]
        return f"{name} must be {words} {context[limit]:g}, not {describe(value)}"
    if kind == "too_short":
        return f"{name} must not be empty"
    expected = _expected(error)
    if expected:
        return f"{name} must be {expected}, not {describe(value)}"
    return f"{name}: {error['msg']}, got {describe(value)}"


def _expected(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"]).replace("'", "")
    return EXPECTED.get(error["type"].split("_")[0], "") if error["type"] in _KINDS else ""


def describe(value: Any) -> str:
    """A value in the words of somebody who writes YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"{value!r}" if isinstance(value, int | float) else f"a {type(value).__name__}"
