"""How closely two replays agree, and where they first differ.

Every number states what was compared: all elements of a tensor that was stored whole, or the fixed sample of one that
was not. The differences themselves are computed by `tensor_diff`.

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Mapping, Sequence, Tuple, Union

from .canonical_json import canonical
from .observation import Observation, Operator
from .operator_diff import first_difference
from .outcome import Outcome
from .record import Record
from .replay import Replay
from .rounding import Allowance, Limit
from .tensor_diff import Difference, differences
from .tensor_values import Fetch

RANKS = {
    1: "identical",
    2: "equal within rounding",
    3: "same outcome by another path",
    4: "different values",
    5: "different outcome",
    6: "cannot compare",
}

LONGEST = 240
"""Maximum number of characters of a text that is shown as a first difference."""


# Agreement of two replays.


@dataclass(frozen=True)
class Agreement:
    """The rank of two replays and the rule that decided it."""

    rank: int
    """A key of `RANKS`; smaller is closer."""
    rule: str
    """Why it is this rank, in one sentence."""
    first: str
    """Where they first differ. Empty when identical."""
    differences: tuple[Difference, ...]
    """Of the plain passes."""

    @property
    def word(self) -> str:
        """The rank in words."""
        return RANKS[self.rank]


Limits = Mapping[tuple[str, str], Union[Allowance, Limit]]
"""What counts as rounding, by role and name of the tensor."""


_OPERATORS = "operators"
_WORDING = "wording of the error"


def rank(ours: Replay, theirs: Replay, fetch: Fetch, allowed: Limits | None = None) -> Agreement:
    """Return how closely two replays of one case agree.

    `allowed` is what counts as rounding, if it was measured: within one machine the allowances of the reference,
    between two machines the result of `rounding.limits`.
    """
    hindrance = _obstacle(ours, theirs)
    if hindrance:
        return Agreement(6, hindrance, "", ())
    passes = sorted(ours.records.keys() & theirs.records.keys())
    pairs = [(ours.records[name], theirs.records[name]) for name in passes]
    if all(first.agreement_digest() == second.agreement_digest() for first, second in pairs):
        return Agreement(1, "the evidence digests are equal", "", ())
    outcome = _outcome_difference(passes, pairs)
    if outcome:
        return Agreement(5, "a pass ended otherwise", outcome, ())
    found = tuple(differences(*pairs[passes.index("plain")], fetch))
    undecided = ""
    for first, second in pairs:
        listed = differences(first, second, fetch)
        tensors = _tensor_mismatch(first.observation, second.observation, listed, allowed)
        if tensors is not None and tensors.beyond:
            return Agreement(4, tensors.rule, tensors.first, found)
        undecided = undecided or (tensors.rule if tensors is not None else "")
    if undecided:
        return Agreement(6, undecided, "", found)
    other = next((text for pair in pairs for text in [_observed_difference(*pair)] if text), "")
    if other:
        return Agreement(4, "an observed value differs", other, found)
    operators = _operator_difference(passes, pairs)
    wording = _wording_difference(passes, pairs)
    if operators or wording:
        what = " and ".join(
            word for word, text in (("operators", operators), ("wording of the error", wording)) if text
        )
        return Agreement(
            3, f"other {what}, no value beyond rounding", "; ".join(filter(None, (wording, operators))), found
        )
    return Agreement(2, _rounding_reason(found, allowed or {}), "", found)


def _rounding_reason(found: Sequence[Difference], allowed: Limits) -> str:
    """Return the rule that holds, with the tensor that comes closest to its limit."""
    shares = [
        (item.at_least / limit.total, item, limit)
        for item in found
        for limit in [allowed.get((item.role, item.name))]
        if limit is not None and limit.total > 0 and not item.same_bits
    ]
    if not shares:
        return "no tensor differs"
    _, item, limit = max(shares, key=lambda one: one[0])
    why = limit.why if isinstance(limit, Limit) else "the reference errs by as much, against float64"
    return (
        f"no tensor differs by more than rounding: {item.role} {item.name} by {item.seen}, "
        f"allowed {limit.total:.3g}: {why}"
    )


def _obstacle(ours: Replay, theirs: Replay) -> str:
    """Return why the two replays cannot be compared, or an empty string if they can."""
    if ours.spec.question.case_digest() != theirs.spec.question.case_digest():
        return "they answer different questions"
    first, second = ours.plain, theirs.plain
    if first is None or second is None:
        return "a plain pass is missing"
    for record in (first, second):
        if record.outcome.kind in ("not_run", "not_observed"):
            return f"{record.outcome.kind.replace('_', ' ')}: {record.outcome.detail}"
    if first.varies or second.varies:
        return "results vary from run to run by nature: one run is no evidence of another"
    if (
        first.observation
        and second.observation
        and _input_digests(first.observation) != _input_digests(second.observation)
    ):
        return "the inputs differ"
    return ""


def _input_digests(seen: Observation) -> list[tuple[str, str | None]]:
    return [(tensor.name, tensor.digest) for tensor in seen.tensors if tensor.role == "input"]


Pairs = Sequence[Tuple[Record, Record]]
"""Records of the passes that two replays share."""


def _outcome_difference(passes: Sequence[str], pairs: Pairs) -> str:
    """Describe the first pass whose kind of ending, exception type or phase differs. Empty if there is none."""
    for name, (first, second) in zip(passes, pairs):
        left, right = ((one.outcome.kind, one.outcome.phase, one.outcome.named) for one in (first, second))
        if left != right:
            return f"{name} pass: {_outcome_line(first.outcome)} against {_outcome_line(second.outcome)}"
    return ""


def _wording_difference(passes: Sequence[str], pairs: Pairs) -> str:
    """Describe where the messages of one error first differ. Empty if they are the same."""
    for name, (first, second) in zip(passes, pairs):
        left, right = ((one.outcome.fingerprint() or "").splitlines() for one in (first, second))
        for number, (ours, theirs) in enumerate(zip_longest(left, right, fillvalue="nothing"), 1):
            if ours != theirs:
                where = f"{_outcome_line(first.outcome)}; line {number}: " if number > 1 else ""
                return f"{name} pass: {where}{_cut_text(ours.strip())} against {_cut_text(theirs.strip())}"
    return ""


def _outcome_line(outcome: Outcome) -> str:
    """Return an outcome on one line: of a message only its first line, which says what happened."""
    said = outcome.fingerprint()
    if said is not None:
        return _cut_text(said.strip().partition("\n")[0])
    return f"{outcome.kind} ({outcome.detail})" if outcome.detail else outcome.kind


@dataclass(frozen=True)
class _Mismatch:
    """A tensor that differs between the two sides."""

    beyond: bool
    """True if it differs by more than rounding, or rounding is not known. False if that is undecided."""
    rule: str
    first: str


def _tensor_mismatch(
    ours: Observation | None,
    theirs: Observation | None,
    found: Sequence[Difference],
    allowed: Limits | None,
) -> _Mismatch | None:
    """Return the first tensor that is beyond rounding or, if there is none, the first that is undecided."""
    if ours is None or theirs is None:
        return None if ours is theirs else _Mismatch(beyond=True, rule="one side left no observation", first="")
    if _tensor_forms(ours) != _tensor_forms(theirs):
        first = "other tensors are there, or of other shapes, dtypes or layouts"
        return _Mismatch(beyond=True, rule="a tensor is another one", first=first)
    unlike = [one for item in found for one in [_mismatch(item, (allowed or {}).get((item.role, item.name)))] if one]
    return min(unlike, key=lambda one: not one.beyond, default=None)


def _mismatch(item: Difference, limit: Allowance | Limit | None) -> _Mismatch | None:
    """Return how a tensor differs by more than rounding, or why that is undecided. None if it does not differ so."""
    name = f"{item.role} {item.name}"
    if item.same_bits:
        return None
    if math.isnan(item.absolute):
        return _Mismatch(beyond=False, rule=f"{name} differs, its content is not at hand or has no numbers", first="")
    first = f"{name} differs by {item.seen}{_allowance_text(limit)}"
    if limit is None or math.isnan(limit.total):
        return _Mismatch(beyond=True, rule="a tensor differs; what counts as rounding is not known", first=first)
    if not limit.can_explain(item):
        return _Mismatch(beyond=True, rule="a tensor differs by more than rounding", first=first)
    if not item.at_most <= limit.total:
        rule = f"{name}: {item.compared} of {item.elements} elements and the sketch do not decide: {item.seen}"
        return _Mismatch(beyond=False, rule=f"{rule}{_allowance_text(limit)}", first="")
    return None


def _allowance_text(limit: Allowance | Limit | None) -> str:
    if limit is None:
        return "; what rounding allows is not known"
    if math.isnan(limit.total):
        return f"; what rounding allows is not known: {limit.why if isinstance(limit, Limit) else ''}"
    return f"; rounding allows {limit.total:.3g}"


def _tensor_forms(seen: Observation) -> list[tuple[Any, ...]]:
    return [(t.role, t.name, t.dtype, t.shape, t.layout, t.digest is None) for t in seen.tensors]


def _operator_difference(passes: Sequence[str], pairs: Pairs) -> str:
    for name, (first, second) in zip(passes, pairs):
        left, right = ((one.observation and one.observation.operators) or {} for one in (first, second))
        for phase in sorted(set(left) | set(right)):
            found = first_difference(left.get(phase, ()), right.get(phase, ()))
            if found:
                shown = f"{_operator_name(found[1].left)} against {_operator_name(found[1].right)}"
                return f"{name} pass, {phase}, operator {found[0]}: {shown}"
    return ""


def _observed_difference(ours: Record, theirs: Record) -> str:
    """Describe the first observed value, or switch left changed, that differs. Empty if there is none."""
    first, second = ours.evidence(), theirs.evidence()
    if first.get("observed") != second.get("observed"):
        left, right = ({name: canonical(value) for name, value in one.get("observed") or ()} for one in (first, second))
        name = next((name for name in sorted({*left, *right}) if left.get(name) != right.get(name)), None)
        if name is None:
            return "values were observed in another order"
        shown = [_cut_text(one.get(name, "nothing")) for one in (left, right)]
        return f"observed {_cut_text(name)}: {shown[0]} against {shown[1]}"
    if first.get("state") != second.get("state"):
        return "other switches were left changed"
    return ""


def _operator_name(operator: Operator | None) -> str:
    return "none" if operator is None else _cut_text(operator.name)


def _cut_text(text: str) -> str:
    """Shorten a text to what fits into a table. The record has all of it."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def audit_forks(replays: Sequence[Replay], fetch: Fetch) -> list[tuple[Replay, Agreement]]:
    """Return each forked replay that also ran in a fresh process, with how closely the two agree.

    The fresh one ran under another hash seed, so a dependency on the fork or on the hash seed becomes visible.
    """
    fresh = {
        (one.spec.question.case_digest(), one.spec.setting.repeat): one
        for one in replays
        if one.spec.setting.isolation == "fresh" and one.spec.setting.sources == "original"
    }
    pairs = (
        (one, fresh.get((one.spec.question.case_digest(), one.spec.setting.repeat)))
        for one in replays
        if one.spec.setting.isolation == "forked"
    )
    return [(one, rank(one, other, fetch)) for one, other in pairs if other is not None]
