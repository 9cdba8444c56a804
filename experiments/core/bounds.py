"""How much a record, and the facts of a machine, may hold. Genuine ones hold a small part of it.

A stranger's record is looked at by every report on the questions that it answers, so what it holds bounds what a report
takes. Whoever looks at a bundle or a folder that is added refuses what is beyond, and says what was found and what is
allowed. Our own worker cuts its list of operators, and says so in it; whatever else of a case is beyond is no
observation that can be read.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from datetime import datetime
from typing import Any, Iterator, Mapping, Sequence, Sized

from .canonical_json import RecordError, canonical, parse, printable
from .observation import Observation, Observed, Operator, Tensor
from .outcome import Outcome
from .record import Record
from .spec import PASSES, Spec

MOST_DIMENSIONS = 64
"""Of a tensor. torch's own operators stop there."""
MOST_ELEMENTS = 2**53
"""Of a tensor: beyond it a float does not count them."""
MOST_TENSORS = 1000
MOST_OPERATORS = 20_000
"""Of a record, all phases together. The longest list of an experiment has some hundreds."""
MOST_SHAPES = 256
"""Of the arguments of one operator."""
MOST_DEPTH = 1000
"""Operators around one."""
MOST_OBSERVED = 1000
"""Values that a case observes."""
MOST_LISTED = 1000
"""Entries of any other list: sources, switches, base classes, expectations, parameters."""
MOST_OF_A_QUESTION = 1000
"""Records of a bundle that answer one question: repeats of a case, each of which is compared with others."""
LONGEST_NAME = 1000
"""Characters of a name, a label, a version. Names of CUDA kernels take hundreds."""
LONGEST_LABEL = 2000
"""Characters of a case with its parameters in one word."""
LONGEST_TEXT = 2**17
"""Characters of any other text, such as a message: twice what a worker keeps of one."""
MOST_DIGITS = 40
"""Of an integer, and characters of a number that a fact tells as text."""
MOST_SECONDS = 1e9
"""Of any time that something took, or may take: thirty years."""
SKETCH = 8 * 1024
"""Bytes of a sketch: 1024 numbers in double precision."""
LARGEST_SAMPLE = 16 * 1024
"""Bytes of a sample: 1024 elements of the widest dtype."""

LARGEST_FACTS = 2**18
"""Characters of a machine document; a worker's has some thousands."""
MOST_FACTS = 1000
"""A worker tells of 75."""
DEEPEST_FACTS = 8
"""Levels of a machine document; a worker's has three."""

CUT = "[cut here: "
"""How the name begins that stands at the end of a list of operators that a worker cut."""

_NAMES = ("name", "role", "dtype", "type", "kind", "phase", "case", "environment", "isolation", "compile_cache")
_NAMED = (*_NAMES, "scenario", "device", "input_dtype", "pass_", "sources", "matmul_precision", "cause", "layout")
"""Fields that are names; any other text may be long."""
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z")


def refuse_excess(record: Record) -> None:
    """Raises RecordError if a record holds more than is allowed, or a time or number that is none."""
    _spec(record.spec)
    _ended(record.outcome)
    ending = record.ending
    _part(ending, "ending")
    _seconds(ending.duration, "duration of the ending")
    if not _is_moment(ending.started_at):
        raise RecordError(f"started_at is {ending.started_at!r:.60}; it must be UTC as 2026-01-02T03:04:05.678Z")
    if record.observation is not None:
        refuse_excess_seen(record.observation)


def refuse_excess_seen(seen: Observation) -> None:
    """Raises RecordError if an observation holds more than is allowed. Values that a case observed may be as long as
    the whole may.
    """
    _ended(seen.outcome)
    _count(seen.tensors, "tensors", MOST_TENSORS)
    for tensor in seen.tensors:
        _part(tensor, "tensor")
        _tensor(tensor)
    _operators(seen.operators or {})
    _count(seen.observed, "observed values", MOST_OBSERVED)
    for one in seen.observed:
        _observed(one)
    for what, listed in (("state changes", seen.state), ("phases of memory", seen.memory), ("sources", seen.sources)):
        _count(listed, what, MOST_LISTED)
        for part in listed:
            _part(part, what)
    _count(seen.durations, "durations", MOST_LISTED)
    for phase, seconds in seen.durations.items():
        _length(phase, "the name of a phase", LONGEST_NAME)
        _seconds(seconds, f"duration of {phase}")


def _spec(spec: Spec) -> None:
    question, setting, mark = spec.question, spec.setting, spec.mark
    for part, what in ((question, "question"), (setting, "setting"), (mark, "mark")):
        _part(part, what)
    if question.pass_ not in PASSES:
        raise RecordError(f"pass of the question is {question.pass_!r:.60}; known are {', '.join(PASSES)}")
    _length(question.label(), "the label of the case", LONGEST_LABEL)
    _seconds(setting.timeout, "timeout of the setting")
    _count(setting.variables, "variables", MOST_LISTED)
    for name, text in setting.variables.items():
        _length(name, "the name of a variable", LONGEST_NAME)
        _length(text, f"variable {name}", LONGEST_TEXT)
    for what, listed in (("expectations", mark.expectations), ("needs", mark.needs), ("series", mark.series)):
        _count(listed, what, MOST_LISTED)
        for value in listed:
            _inside(value, what)
    _inside(question.parameters, "parameters")


def _ended(outcome: Outcome) -> None:
    _part(outcome, "outcome")
    _count(outcome.bases, "base classes", MOST_LISTED)
    for name in outcome.bases:
        _length(name, "the name of a base class", LONGEST_NAME)


def _tensor(tensor: Tensor) -> None:
    shape = tensor.shape or ()
    what = f"tensor {tensor.name!r:.60}"
    _dimensions(shape, what)
    if math.prod(shape) > MOST_ELEMENTS:
        raise RecordError(f"{what} has more elements than {MOST_ELEMENTS}, by its shape")


def _dimensions(shape: Sequence[int], what: str) -> None:
    if len(shape) > MOST_DIMENSIONS:
        raise RecordError(f"{what} has {len(shape)} dimensions; at most {MOST_DIMENSIONS} are read")


def _operators(by_phase: Mapping[str, Sequence[Operator]]) -> None:
    _count(by_phase, "phases with operators", MOST_LISTED)
    count = sum(map(len, by_phase.values()))
    # A list that was cut ends with one more, which says so.
    if count > MOST_OPERATORS + len(by_phase):
        raise RecordError(f"there are {count} operators; at most {MOST_OPERATORS} are read")
    for phase, listed in by_phase.items():
        _length(phase, "the name of a phase", LONGEST_NAME)
        for one in listed:
            _length(one.name, "the name of an operator", LONGEST_NAME)
            if not (0 <= one.depth <= MOST_DEPTH and 0 <= one.thread < 2**31):
                raise RecordError(
                    f"operator {one.name!r:.60} is in thread {one.thread} below {one.depth} others; "
                    f"at most {MOST_DEPTH} are read"
                )
            _count(one.shapes, f"arguments of operator {one.name!r:.60}", MOST_SHAPES)
            for shape in one.shapes:
                _dimensions(shape, f"an argument of operator {one.name!r:.60}")


def _observed(one: Observed) -> None:
    _length(one.name, "the name of an observed value", LONGEST_NAME)
    _length(one.kind, "the kind of an observed value", LONGEST_NAME)


def _part(part: Any, what: str) -> None:
    """The texts and integers among the fields of a dataclass."""
    for field in fields(part):
        value = getattr(part, field.name)
        where = f"{field.name.rstrip('_')} of the {what}"
        if isinstance(value, str):
            _length(value, where, LONGEST_NAME if field.name in _NAMED else LONGEST_TEXT)
        elif isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            raise RecordError(f"{where} has more than {MOST_DIGITS} digits")


def _inside(value: Any, what: str) -> None:
    """Whatever a value holds."""
    if isinstance(value, str):
        _length(value, f"a text among the {what}", LONGEST_TEXT)
    elif isinstance(value, (Mapping, list, tuple)):
        _count(value, what, MOST_LISTED)
        if isinstance(value, Mapping):
            for name in value:
                _length(name, f"a name among the {what}", LONGEST_NAME)
        for inner in value.values() if isinstance(value, Mapping) else value:
            _inside(inner, what)


def _length(text: str, what: str, most: int) -> None:
    if len(text) > most:
        raise RecordError(f"{what} has {len(text)} characters; at most {most} are read")


def _count(listed: Sized, what: str, most: int) -> None:
    if len(listed) > most:
        raise RecordError(f"there are {len(listed)} {what}; at most {most} are read")


def _seconds(value: float, what: str) -> None:
    if not 0 <= value <= MOST_SECONDS:
        raise RecordError(f"{what} is {value}; from 0 to {MOST_SECONDS:.0f} seconds is read")


def _is_moment(text: str) -> bool:
    if not _MOMENT.fullmatch(text):
        return False
    try:
        return datetime.strptime(f"{text[:19]}Z", "%Y-%m-%dT%H:%M:%S%z").year >= 1970
    except ValueError:
        return False


# Contents.


def refuse_excess_facts(text: str) -> None:
    """Raises RecordError if facts of a machine are more than is allowed, or two of them cannot be told apart. A text
    that cannot be read as facts says nothing of a machine, so there is no more to it than its length.
    """
    if len(text) > LARGEST_FACTS:
        raise RecordError(f"there are {len(text)} characters; at most {LARGEST_FACTS} are read")
    try:
        found = parse(text)
        canonical(found)
    except RecordError:
        return
    names: dict[str, str] = {}
    for count, (name, value) in enumerate(_facts(found, "") if isinstance(found, dict) else (), 1):
        if count > MOST_FACTS:
            raise RecordError(f"there are more than {MOST_FACTS} facts; no more are read")
        _length(name, "the name of a fact", LONGEST_NAME)
        if isinstance(value, str):
            _length(value, f"fact {name!r:.60}", LONGEST_TEXT)
        if printable(name) in names:
            raise RecordError(f"two facts print alike: {name!r:.100}")
        names[printable(name)] = name


def _facts(value: Mapping[str, Any], start: str, depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Facts by dotted name, as `classes.flat` has them."""
    if depth > DEEPEST_FACTS:
        raise RecordError(f"facts are nested deeper than {DEEPEST_FACTS} levels")
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _facts(inner, f"{start}{name}.", depth + 1)
        else:
            yield start + name, inner
