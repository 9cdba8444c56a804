"""The JSON Schema of a record, made from the dataclasses that define it.

    python -m store.json_schema > store/record.schema.json

A test holds the published file to this, and real records to the file.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from experiments.core import observation as observation_module
from experiments.core import outcome as outcome_module
from experiments.core import schema_history, spec, streams

SPECIAL = {"type": "string", "enum": ["nan", "inf", "-inf", "-0.0"]}
"""Floats that JSON cannot carry."""


def schema() -> dict[str, Any]:
    """Schema (draft 2020-12) of a record's JSON in this version."""
    outcome = _object(outcome_module.Outcome)
    outcome["properties"]["fingerprint"] = {"type": ["string", "null"]}
    outcome["required"].append("fingerprint")
    outcome["properties"]["kind"] = {"enum": list(outcome_module.ENDINGS)}
    observation = _object(observation_module.Observation)
    del observation["properties"]["outcome"]
    observation["required"].remove("outcome")
    parts = {
        "schema": {"const": schema_history.SCHEMA},
        "spec": _object(spec.Spec),
        "outcome": outcome,
        "observation": {"oneOf": [{"type": "null"}, observation]},
        "ending": _object(observation_module.Ending),
        "evidence_digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Twofold record, schema {schema_history.SCHEMA}",
        "description": "One process: what was asked, what was seen, how it ended.",
        "type": "object",
        "properties": parts,
        "required": sorted(parts),
        "additionalProperties": False,
    }


def _object(kind: Any) -> dict[str, Any]:
    hints, texts = typing.get_type_hints(kind), _texts(kind)
    properties = {}
    for field in fields(kind):
        made = _type(hints[field.name])
        properties[field.name.rstrip("_")] = (
            {**made, "description": texts[field.name]} if texts.get(field.name) else made
        )
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": False,
    }


def _type(hint: Any) -> dict[str, Any]:
    plain: dict[Any, dict[str, Any]] = {
        str: {"type": "string"},
        int: {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^-?[1-9][0-9]{15,}$"}]},
        bool: {"type": "boolean"},
        Any: {},
    }
    if hint is float:
        return {"anyOf": [{"type": "number"}, SPECIAL]}
    if hint in plain:
        return {**plain[hint]}
    if hint is type(None):
        return {"type": "null"}
    if hint is observation_module.Operator:
        return _operator()
    if hasattr(hint, "__dataclass_fields__"):
        return _object(hint)
    return _compound(typing.get_origin(hint), typing.get_args(hint))


def _compound(origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type(one) for one in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    raise TypeError(f"no JSON Schema for {origin}")


def _operator() -> dict[str, Any]:
    """Operators are many, so each is a list: thread, depth, name, shapes."""
    shapes = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
    items = [{"type": "integer"}, {"type": "integer"}, {"type": "string"}, shapes]
    return {"type": "array", "prefixItems": items, "minItems": 4, "maxItems": 4}


def _texts(kind: Any) -> dict[str, str]:
    """The docstring under each field."""
    body = typing.cast("ast.ClassDef", ast.parse(inspect.getsource(kind)).body[0]).body
    return {
        first.target.id: inspect.cleandoc(second.value.value).replace("\n", " ")
        for first, second in zip(body, body[1:])
        if isinstance(first, ast.AnnAssign)
        and isinstance(first.target, ast.Name)
        and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant)
        and isinstance(second.value.value, str)
    }


def text() -> str:
    """The schema as the published file has it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(streams.status("schema", lambda: print(text(), end="")))
