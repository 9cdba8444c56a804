"""Limits on the content of a record, and of the facts of a machine. Genuine ones use a small part of them.

Every report on a question reads all records that answer it, including those from elsewhere, so the size of a record
bounds the cost of a report. Whatever reads an added bundle or folder refuses what exceeds a limit, and reports what was
found and what is allowed. Our own worker cuts its list of operators and marks it as cut; an observation that exceeds
any other limit cannot be read.

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from datetime import datetime
from typing import Any, Iterator, Mapping, Sequence, Sized

from .canonical_json import RecordError, canonical, parse, printable_text
from .observation import Observation, Observed, Operator, Tensor
from .outcome import Outcome
from .record import Record
from .spec import PASSES, Spec

MOST_DIMENSIONS = 64
"""Dimensions of a tensor. This is also the limit of torch's operators."""
MOST_ELEMENTS = 2**53
"""Elements of a tensor. Beyond it a float cannot represent their number."""
MOST_TENSORS = 1000
MOST_OPERATORS = 20_000
"""Operators of a record, all phases together. The longest list of an experiment has some hundreds."""
MOST_SHAPES = 256
"""Shapes of the arguments of one operator."""
MOST_DEPTH = 1000
"""Operators around an operator."""
MOST_OBSERVED = 1000
"""Values that a case observes."""
MOST_LISTED = 1000
"""Entries of any other list: sources, switches, base classes, expectations, parameters."""
MOST_OF_A_QUESTION = 1000
"""Records of a bundle that answer one question, that is, repeats of a case, each of which is compared with others."""
LONGEST_NAME = 1000
"""Characters of a name, a label, a version. Names of CUDA kernels take hundreds."""
LONGEST_LABEL = 2000
"""Characters of a case with its parameters in one word."""
LONGEST_TEXT = 2**17
"""Characters of any other text, such as a message: twice the limit of a worker."""
MOST_DIGITS = 40
"""Digits of an integer, and characters of a number that a fact contains as text."""
MOST_SECONDS = 1e9
"""Seconds of any duration or time limit: thirty years."""
SKETCH = 8 * 1024
"""Bytes of a sketch: 1024 numbers in double precision."""
LARGEST_SAMPLE = 16 * 1024
"""Bytes of a sample: 1024 elements of the widest dtype."""

LARGEST_FACTS = 2**18
"""Characters of a machine document; a worker's has some thousands."""
MOST_FACTS = 1000
"""Facts of a machine document. A worker records 75."""
DEEPEST_FACTS = 8
"""Levels of a machine document; a worker's has three."""

CUT = "[cut here: "
"""Start of the name of the last entry of a list of operators that a worker cut."""

_NAMES = ("name", "role", "dtype", "type", "kind", "phase", "case", "environment", "isolation", "compile_cache")
_NAMED = (*_NAMES, "scenario", "device", "input_dtype", "pass_", "sources", "matmul_precision", "cause", "layout")
"""Fields that contain names. Any other text may be long."""
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z")


def refuse_excess(record: Record) -> None:
    """Raise RecordError if a record exceeds a limit, or has an invalid time or number."""
    _check_spec(record.spec)
    _check_outcome(record.outcome)
    ending = record.ending
    _check_fields(ending, "ending")
    _check_seconds(ending.duration, "duration of the ending")
    if not _is_moment(ending.started_at):
        raise RecordError(f"started_at is {ending.started_at!r:.60}; it must be UTC as 2026-01-02T03:04:05.678Z")
    if record.observation is not None:
        refuse_excess_observation(record.observation)


def refuse_excess_observation(seen: Observation) -> None:
    """Raise RecordError if an observation exceeds a limit. A value that a case observed has no limit of its own."""
    _check_outcome(seen.outcome)
    _check_count(seen.tensors, "tensors", MOST_TENSORS)
    for tensor in seen.tensors:
        _check_fields(tensor, "tensor")
        _check_tensor(tensor)
    _check_operators(seen.operators or {})
    _check_count(seen.observed, "observed values", MOST_OBSERVED)
    for one in seen.observed:
        _check_observed_value(one)
    for what, listed in (("state changes", seen.state), ("phases of memory", seen.memory), ("sources", seen.sources)):
        _check_count(listed, what, MOST_LISTED)
        for part in listed:
            _check_fields(part, what)
    _check_count(seen.durations, "durations", MOST_LISTED)
    for phase, seconds in seen.durations.items():
        _check_length(phase, "the name of a phase", LONGEST_NAME)
        _check_seconds(seconds, f"duration of {phase}")


def _check_spec(spec: Spec) -> None:
    question, setting, mark = spec.question, spec.setting, spec.mark
    for part, what in ((question, "question"), (setting, "setting"), (mark, "mark")):
        _check_fields(part, what)
    if question.pass_ not in PASSES:
        raise RecordError(f"pass of the question is {question.pass_!r:.60}; known are {', '.join(PASSES)}")
    _check_length(question.label(), "the label of the case", LONGEST_LABEL)
    _check_seconds(setting.timeout, "timeout of the setting")
    _check_count(setting.variables, "variables", MOST_LISTED)
    for name, text in setting.variables.items():
        _check_length(name, "the name of a variable", LONGEST_NAME)
        _check_length(text, f"variable {name}", LONGEST_TEXT)
    for what, listed in (("expectations", mark.expectations), ("needs", mark.needs), ("series", mark.series)):
        _check_count(listed, what, MOST_LISTED)
        for value in listed:
            _check_nested_value(value, what)
    _check_nested_value(question.parameters, "parameters")


def _check_outcome(outcome: Outcome) -> None:
    _check_fields(outcome, "outcome")
    _check_count(outcome.bases, "base classes", MOST_LISTED)
    for name in outcome.bases:
        _check_length(name, "the name of a base class", LONGEST_NAME)


def _check_tensor(tensor: Tensor) -> None:
    shape = tensor.shape or ()
    what = f"tensor {tensor.name!r:.60}"
    _check_dimensions(shape, what)
    if math.prod(shape) > MOST_ELEMENTS:
        raise RecordError(f"{what} has more elements than {MOST_ELEMENTS}, by its shape")


def _check_dimensions(shape: Sequence[int], what: str) -> None:
    if len(shape) > MOST_DIMENSIONS:
        raise RecordError(f"{what} has {len(shape)} dimensions; at most {MOST_DIMENSIONS} are read")


def _check_operators(by_phase: Mapping[str, Sequence[Operator]]) -> None:
    _check_count(by_phase, "phases with operators", MOST_LISTED)
    count = sum(map(len, by_phase.values()))
    # A list that was cut has one more entry, which marks it as cut.
    if count > MOST_OPERATORS + len(by_phase):
        raise RecordError(f"there are {count} operators; at most {MOST_OPERATORS} are read")
    for phase, listed in by_phase.items():
        _check_length(phase, "the name of a phase", LONGEST_NAME)
        for one in listed:
            _check_length(one.name, "the name of an operator", LONGEST_NAME)
            if not (0 <= one.depth <= MOST_DEPTH and 0 <= one.thread < 2**31):
                raise RecordError(
                    f"operator {one.name!r:.60} is in thread {one.thread} below {one.depth} others; "
                    f"at most {MOST_DEPTH} are read"
                )
            _check_count(one.shapes, f"arguments of operator {one.name!r:.60}", MOST_SHAPES)
            for shape in one.shapes:
                _check_dimensions(shape, f"an argument of operator {one.name!r:.60}")


def _check_observed_value(one: Observed) -> None:
    _check_length(one.name, "the name of an observed value", LONGEST_NAME)
    _check_length(one.kind, "the kind of an observed value", LONGEST_NAME)


def _check_fields(part: Any, what: str) -> None:
    """Check the texts and integers among the fields of a dataclass."""
    for field in fields(part):
        value = getattr(part, field.name)
        where = f"{field.name.rstrip('_')} of the {what}"
        if isinstance(value, str):
            _check_length(value, where, LONGEST_NAME if field.name in _NAMED else LONGEST_TEXT)
        elif isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            raise RecordError(f"{where} has more than {MOST_DIGITS} digits")


def _check_nested_value(value: Any, what: str) -> None:
    """Check everything inside a JSON value."""
    if isinstance(value, str):
        _check_length(value, f"a text among the {what}", LONGEST_TEXT)
    elif isinstance(value, (Mapping, list, tuple)):
        _check_count(value, what, MOST_LISTED)
        if isinstance(value, Mapping):
            for name in value:
                _check_length(name, f"a name among the {what}", LONGEST_NAME)
        for inner in value.values() if isinstance(value, Mapping) else value:
            _check_nested_value(inner, what)


def _check_length(text: str, what: str, most: int) -> None:
    if len(text) > most:
        raise RecordError(f"{what} has {len(text)} characters; at most {most} are read")


def _check_count(listed: Sized, what: str, most: int) -> None:
    if len(listed) > most:
        raise RecordError(f"there are {len(listed)} {what}; at most {most} are read")


def _check_seconds(value: float, what: str) -> None:
    if not 0 <= value <= MOST_SECONDS:
        raise RecordError(f"{what} is {value}; from 0 to {MOST_SECONDS:.0f} seconds is read")


def _is_moment(text: str) -> bool:
    if not _MOMENT.fullmatch(text):
        return False
    try:
        return datetime.strptime(f"{text[:19]}Z", "%Y-%m-%dT%H:%M:%S%z").year >= 1970
    except ValueError:
        return False


# Facts of machines.


def refuse_excess_facts(text: str) -> None:
    """Raise RecordError if the facts of a machine exceed a limit, or two of them print alike.

    Of a text that cannot be read as facts, only the length is checked.
    """
    if len(text) > LARGEST_FACTS:
        raise RecordError(f"there are {len(text)} characters; at most {LARGEST_FACTS} are read")
    try:
        found = parse(text)
        canonical(found)
    except RecordError:
        return
    names: dict[str, str] = {}
    for count, (name, value) in enumerate(_flat_facts(found, "") if isinstance(found, dict) else (), 1):
        if count > MOST_FACTS:
            raise RecordError(f"there are more than {MOST_FACTS} facts; no more are read")
        _check_length(name, "the name of a fact", LONGEST_NAME)
        if isinstance(value, str):
            _check_length(value, f"fact {name!r:.60}", LONGEST_TEXT)
        if printable_text(name) in names:
            raise RecordError(f"two facts print alike: {name!r:.100}")
        names[printable_text(name)] = name


def _flat_facts(value: Mapping[str, Any], start: str, depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield facts by dotted name, as `settings.flatten_facts` returns them."""
    if depth > DEEPEST_FACTS:
        raise RecordError(f"facts are nested deeper than {DEEPEST_FACTS} levels")
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat_facts(inner, f"{start}{name}.", depth + 1)
        else:
            yield start + name, inner
