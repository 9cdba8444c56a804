"""The published JSON Schema is made from the dataclasses, and real records hold to it."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from jsonschema import Draft202012Validator

from experiments.core.observation import Operator, Output
from experiments.core.outcome import ENDINGS
from experiments.core.schema_history import SCHEMA
from store import json_schema

PUBLISHED = Path(__file__).parents[1] / "store" / "record.schema.json"


@pytest.fixture(scope="module")
def validator():
    made = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(made)
    return Draft202012Validator(made)


def unusual():
    """A record with what is rare: a sampled tensor, a missing gradient, floats that JSON cannot carry."""
    record = samples.record(timeout=math.inf, memory=2**60, parameters={"size": "small", "count": 3, "none": None})
    small = record.observation.tensors[0]
    tensors = (
        replace(small, whole=False, samples="b" * 64, sketch="c" * 64, norm=math.nan, largest=-0.0),
        replace(small, dtype=None, shape=None, digest=None, whole=False, norm=None, largest=None),
        replace(small, shape=()),
    )
    seen = replace(
        record.observation, tensors=tensors, operators={"forward": (Operator(0, 1, "aten::mm", ((), (2,))),)}
    )
    return replace(record, observation=seen, ending=replace(record.ending, signal="SIGKILL", exit_code=None))


RECORDS = {
    "finished": samples.record(),
    "raised": samples.record(kind="raised", message="text"),
    "without an observation": samples.record(kind="died", observed=False),
    "unreadable": replace(
        samples.record(kind="died", observed=False),
        ending=replace(samples.record().ending, unreadable=Output("a" * 64, 1, 1)),
    ),
    "profiled": samples.record(pass_="profiled"),
    "unusual": unusual(),
}


def test_the_published_schema_is_that_of_this_version():
    """`python -m store.json_schema > store/record.schema.json` after any change of a field."""
    assert PUBLISHED.read_text(encoding="utf-8") == json_schema.schema_text()
    assert json_schema.record_schema()["properties"]["schema"] == {"const": SCHEMA}


@pytest.mark.parametrize("name", RECORDS)
def test_records_hold_to_the_schema(validator, name):
    validator.validate(json.loads(RECORDS[name].text()))


def objects(data, path=()):
    """The path of every object whose fields the schema fixes."""
    free = {"parameters", "variables", "expectations", "durations", "operators", "value", "before", "after"}
    if isinstance(data, dict):
        yield path
        for name, item in data.items():
            if name not in free:
                yield from objects(item, (*path, name))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from objects(item, (*path, index))


def at(data, path):
    for name in path:
        data = data[name]
    return data


def test_a_record_that_lacks_a_field_does_not_hold_to_the_schema(validator):
    data = json.loads(samples.record().text())
    for path in objects(data):
        for name in at(data, path):
            lacking = copy.deepcopy(data)
            del at(lacking, path)[name]
            assert not validator.is_valid(lacking), (*path, name)


def test_a_record_with_a_field_too_many_does_not_hold_to_the_schema(validator):
    data = json.loads(samples.record().text())
    paths = list(objects(data))
    assert len(paths) > 10
    for path in paths:
        more = copy.deepcopy(data)
        at(more, path)["planted"] = 1
        assert not validator.is_valid(more), path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), SCHEMA + 1),
        (("outcome", "kind"), "exploded"),
        (("evidence_digest",), "A" * 64),
        (("evidence_digest",), "a" * 63),
        (("observation", "tensors", 0, "norm"), "NaN"),
        (("observation", "tensors", 0, "whole"), "yes"),
        (("observation", "operators", "forward", 0), [0, 0, "aten::mul"]),
        (("observation", "operators", "forward", 0), [0, 0, "aten::mul", [], 1]),
        (("ending", "duration"), None),
        (("ending", "exit_code"), 1.5),
        (("spec", "question", "pass"), None),
    ],
)
def test_a_value_of_another_kind_does_not_hold_to_the_schema(validator, path, value):
    data = json.loads(samples.record().text())
    at(data, path[:-1])[path[-1]] = value
    assert not validator.is_valid(data)


def test_only_digits_pass_for_an_integer(validator):
    data = json.loads(samples.record().text())
    data["spec"]["question"]["threads"] = "two"
    assert not validator.is_valid(data)


def test_every_ending_is_known(validator):
    for kind in ENDINGS:
        data = json.loads(samples.record().text())
        data["outcome"]["kind"] = kind
        validator.validate(data)


def test_the_meaning_of_fields_is_published():
    """Whoever reads a bundle without this code finds what a field means beside it."""
    properties = json_schema.record_schema()["properties"]["spec"]["properties"]["setting"]["properties"]
    assert properties["timeout"]["description"] == "Seconds until the process group is ended."
    assert "pass" in json_schema.record_schema()["properties"]["spec"]["properties"]["question"]["properties"]
