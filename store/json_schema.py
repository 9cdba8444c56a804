"""The JSON Schema of a record, generated from the dataclasses that define it.

    python -m store.json_schema > store/record.schema.json

A test compares the published file with this output, and validates real records against the file.
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
"""Floats that JSON cannot represent."""


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a record in this version."""
    outcome = _object_schema(outcome_module.Outcome)
    outcome["properties"]["fingerprint"] = {"type": ["string", "null"]}
    outcome["required"].append("fingerprint")
    outcome["properties"]["kind"] = {"enum": list(outcome_module.ENDINGS)}
    observation = _object_schema(observation_module.Observation)
    del observation["properties"]["outcome"]
    observation["required"].remove("outcome")
    parts = {
        "schema": {"const": schema_history.SCHEMA},
        "spec": _object_schema(spec.Spec),
        "outcome": outcome,
        "observation": {"oneOf": [{"type": "null"}, observation]},
        "ending": _object_schema(observation_module.Ending),
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


def _object_schema(kind: Any) -> dict[str, Any]:
    hints, texts = typing.get_type_hints(kind), _field_docstrings(kind)
    properties = {}
    for field in fields(kind):
        field_schema = _type_schema(hints[field.name])
        properties[field.name.rstrip("_")] = (
            {**field_schema, "description": texts[field.name]} if texts.get(field.name) else field_schema
        )
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties),
        "additionalProperties": False,
    }


def _type_schema(hint: Any) -> dict[str, Any]:
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
        return _operator_schema()
    if hasattr(hint, "__dataclass_fields__"):
        return _object_schema(hint)
    return _compound_schema(typing.get_origin(hint), typing.get_args(hint))


def _compound_schema(origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type_schema(one) for one in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _type_schema(arguments[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _type_schema(arguments[1])}
    raise TypeError(f"no JSON Schema for {origin}")


def _operator_schema() -> dict[str, Any]:
    """Return the schema of an operator. There are many, so each is a list: thread, depth, name, shapes."""
    shapes = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
    items = [{"type": "integer"}, {"type": "integer"}, {"type": "string"}, shapes]
    return {"type": "array", "prefixItems": items, "minItems": 4, "maxItems": 4}


def _field_docstrings(kind: Any) -> dict[str, str]:
    """Return field name -> the docstring under the field."""
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


def schema_text() -> str:
    """Return the schema as the text of the published file."""
    return json.dumps(record_schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(streams.run_program("schema", lambda: print(schema_text(), end="")))
