"""A sweep as JUnit XML, for tools that show test results: its verdicts, and how far each other setting agrees.

The same records give the same bytes: no time and no order of a set is in the file. Characters that XML cannot hold are
shown as backslash escapes.
"""

from __future__ import annotations

import io
import math
from typing import Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from junitparser.junitparser import FinalResult

from experiments.analysis.settings import ComputerSetting, differing_factors, label, value
from experiments.core.agreement import RANKS
from experiments.core.replay import Replay
from experiments.core.text import cut_text, visible_text
from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, Verdict, describe_outcome
from reports.setting_comparison import Across, Pair

VERDICTS = "verdicts"
ENDED = ("timed_out", "out_of_memory", "died")
"""Endings of a process that could not report its outcome."""
LONGEST = 4000
"""Most characters of one text."""


def document(sweep: str, judged: Sequence[tuple[Replay, Verdict]], found: Across | None) -> bytes:
    """Return the XML: one suite for the verdicts of a sweep, and one for each other setting of `found`, if any."""
    root = JUnitXml("twofold")
    root.add_testsuite(_verdict_suite(sweep, judged))
    if found is not None:
        for other in sorted(found.others, key=lambda one: one.name):
            root.add_testsuite(_setting_suite(other, found))
    root.update_statistics()  # type: ignore[no-untyped-call]
    written = io.BytesIO()
    root.write(written)
    return written.getvalue()


def _suite(name: str, properties: Sequence[tuple[str, str]], cases: Sequence[TestCase]) -> TestSuite:
    suite = TestSuite(_line(name))
    for key, text in properties:
        suite.add_property(_line(key), _line(text))
    suite.add_testcases(sorted(cases, key=lambda one: (one.classname, one.name)))
    return suite


def _case(replay: Replay, name: str, result: FinalResult | None, timed: Replay | None) -> TestCase:
    """Return a test case with the duration in seconds of the plain process of `timed`."""
    record = timed.plain if timed is not None else None
    took = record.ending.duration if record is not None else 0.0
    seconds = round(took, 3) if math.isfinite(took) else 0.0
    case = TestCase(_line(name), _line(replay.spec.question.scenario), seconds)
    if result is not None:
        case.result = result
    return case


def _line(text: str) -> str:
    return cut_text(visible_text(text), LONGEST)


def _text(text: str) -> str:
    return cut_text(visible_text(text, lines=True), LONGEST)


# The verdicts of the sweep.


def _verdict_suite(sweep: str, judged: Sequence[tuple[Replay, Verdict]]) -> TestSuite:
    cases = [_case(replay, _case_name(replay), _verdict_result(replay, verdict), replay) for replay, verdict in judged]
    return _suite(VERDICTS, [("sweep", sweep)], cases)


def _case_name(replay: Replay) -> str:
    """Return the name of a replay: its case, its repeat, and how it was run where that is not the default."""
    setting = replay.spec.setting
    ways = [word for word in (setting.isolation, setting.sources) if word not in ("fresh", "original")]
    return " ".join([_label(replay), f"#{setting.repeat}", *ways])


def _label(replay: Replay) -> str:
    return f"{replay.spec.question.label()} ({replay.spec.question.device})"


def _verdict_result(replay: Replay, verdict: Verdict) -> FinalResult | None:
    why = "; ".join(verdict.reasons)
    if verdict.word == AS_EXPECTED:
        return None
    if verdict.word == CANNOT_SAY:
        return Skipped(_line(why))
    failure = Failure(_line(why), verdict.word)
    failure.text = _text(describe_outcome(replay.plain) if replay.plain else "the plain pass has not run")
    return failure


# Another setting.


def _setting_suite(other: ComputerSetting, found: Across) -> TestSuite:
    number = next((at for at, one in enumerate(found.classes, 1) if other in one.members), None)
    own = next((at for at, one in enumerate(found.classes, 1) if found.here in one.members), None)
    properties = [
        ("from", other.origin),
        ("computer", found.host_description(other)),
        ("class", "none" if number is None else str(number)),
        ("class of this setting", "none" if own is None else str(own)),
        *((label(name), value(other, name, found.here)) for name in differing_factors(found.here, other)),
    ]
    pairs = found.by_setting[other.name]
    return _suite(
        other.name, properties, [_case(one.ours, _label(one.ours), _agreement_result(one), one.theirs) for one in pairs]
    )


def _agreement_result(pair: Pair) -> FinalResult | None:
    agreement = pair.agreement
    if not pair.compared or agreement.word == RANKS[6]:
        return Skipped(_line(agreement.rule))
    ended = [replay.plain.outcome.kind for replay in (pair.ours, pair.theirs) if replay and replay.plain]
    if sum(kind in ENDED for kind in ended) == 1:
        result: FinalResult = Error(_line(agreement.first), f"{ended[0]} here, {ended[1]} there")
    elif pair.differs:
        result = Failure(_line(agreement.first), agreement.word)
    else:
        return None
    result.text = _text(agreement.rule)
    return result
