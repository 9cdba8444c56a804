"""Schemas of a record: the current one, and how older ones are read.

Schema history:
    1   first.
    2   a setting names the compile cache, a mark the series it belongs to, memory the largest single allocation;
        a process may warm up before it is observed.
    3   a setting may state its own number of threads and matmul precision, other than those of the question.
    4   a process may end as `not_observed`; a tensor names its layout; a fingerprint is free of frames, ports, times
        and temporary names, and the texts that a case observed are compared like it; `varies` says of what.
"""

from __future__ import annotations

from typing import Any, Mapping

from .canonical_json import RecordError
from .spec import LATER_FIELDS

SCHEMA = 4
"""Version of the record's JSON that this code writes. It reads 1 to SCHEMA."""


FIRST_NORMALIZED = 4
"""The first schema whose fingerprints are made by `fingerprint.normalize`."""


def upgraded_spec(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a spec of any schema in the current one. A stored plan does not contain its schema."""
    setting = {**{name: LATER_FIELDS[name] for name in ("compile_cache", *_THIRD)}, **data["setting"]}
    return {**data, "setting": setting, "mark": {"series": LATER_FIELDS["series"], **data["mark"]}}


_THIRD = ("threads", "matmul_precision")


def _upgrade_to_schema_2(data: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from schema 1, which had private compile caches, no series, and no single allocations."""
    spec, seen = data["spec"], data["observation"]
    rows = [] if seen is None else seen["memory"]
    added = [("compile_cache", spec["setting"]), ("series", spec["mark"]), *(("largest", row) for row in rows)]
    for name, part in added:
        if name in part:
            raise RecordError(f"schema 1 has no {name}")
    if seen is not None:
        seen = {**seen, "memory": [{**row, "largest": None} for row in rows]}
    setting = {"compile_cache": LATER_FIELDS["compile_cache"], **spec["setting"]}
    spec = {**spec, "setting": setting, "mark": {"series": LATER_FIELDS["series"], **spec["mark"]}}
    return {**data, "spec": spec, "observation": seen}


def _upgrade_to_schema_3(data: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from schema 2, which had the threads of the question and torch's own precision."""
    for name in _THIRD:
        if name in data["spec"]["setting"]:
            raise RecordError(f"schema 2 has no {name}")
    return {**data, "spec": upgraded_spec(data["spec"])}


def _upgrade_to_schema_4(data: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from schema 3, which had only dense tensors, and in which `varies` referred to endings."""
    seen = data["observation"]
    if data["outcome"]["kind"] == "not_observed":
        raise RecordError("schema 3 has no not_observed")
    if seen is None:
        return data
    for tensor in seen["tensors"]:
        if "layout" in tensor:
            raise RecordError("schema 3 has no layout")
    return {**data, "observation": {**seen, "tensors": [{**one, "layout": ""} for one in seen["tensors"]]}}


_UPGRADES: list[Any] = [_upgrade_to_schema_2, _upgrade_to_schema_3, _upgrade_to_schema_4]
"""`_UPGRADES[n - 1]` converts schema n to n + 1. Stored text is never changed, only what is read from it."""


def upgrade_record(data: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a record of any schema in the current one, without `schema`. Raises RecordError if unknown."""
    schema = data.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise RecordError(
            f"record has schema {schema!r}; this version reads 1 to {SCHEMA}: update the project to read it"
        )
    data = {key: value for key, value in data.items() if key != "schema"}
    for step in _UPGRADES[schema - 1 :]:
        data = step(data)
    return data
