"""A sweep as JUnit XML, for what shows test results: its verdicts, and how far each other setting agrees with it.

Same records, same bytes: no moment and no order of a set is in it. Text from records may hold what XML cannot; that is
shown as backslash escapes.
"""

from __future__ import annotations

import io
import math
from typing import Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from junitparser.junitparser import FinalResult

from experiments.analysis.settings import ComputerSetting, differing, label, value
from experiments.core.agreement import RANKS
from experiments.core.replay import Replay
from experiments.core.text import cut, visible
from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, Verdict, ending
from reports.setting_comparison import Across, Pair

VERDICTS = "verdicts"
ENDED = ("timed_out", "out_of_memory", "died")
"""How a process ends that had no chance to say what it came to."""
LONGEST = 4000
"""Characters of one text."""


def document(sweep: str, judged: Sequence[tuple[Replay, Verdict]], found: Across | None) -> bytes:
    """The verdicts of a sweep as one suite, and a suite for each other setting; `found` None has none."""
    root = JUnitXml("twofold")
    root.add_testsuite(_verdicts(sweep, judged))
    if found is not None:
        for other in sorted(found.others, key=lambda one: one.name):
            root.add_testsuite(_setting(other, found))
    root.update_statistics()  # type: ignore[no-untyped-call]
    written = io.BytesIO()
    root.write(written)
    return written.getvalue()


def _suite(name: str, properties: Sequence[tuple[str, str]], cases: Sequence[TestCase]) -> TestSuite:
    made = TestSuite(_line(name))
    for key, text in properties:
        made.add_property(_line(key), _line(text))
    made.add_testcases(sorted(cases, key=lambda one: (one.classname, one.name)))
    return made


def _case(replay: Replay, name: str, came_to: FinalResult | None, timed: Replay | None) -> TestCase:
    """A case with the seconds of the plain process of `timed`."""
    record = timed.plain if timed is not None else None
    took = record.ending.duration if record is not None else 0.0
    seconds = round(took, 3) if math.isfinite(took) else 0.0
    made = TestCase(_line(name), _line(replay.spec.question.scenario), seconds)
    if came_to is not None:
        made.result = came_to
    return made


def _line(text: str) -> str:
    return cut(visible(text), LONGEST)


def _text(text: str) -> str:
    return cut(visible(text, lines=True), LONGEST)


# The verdicts of the sweep.


def _verdicts(sweep: str, judged: Sequence[tuple[Replay, Verdict]]) -> TestSuite:
    cases = [_case(replay, _named(replay), _judged(replay, verdict), replay) for replay, verdict in judged]
    return _suite(VERDICTS, [("sweep", sweep)], cases)


def _named(replay: Replay) -> str:
    """A case is replayed more than once: which time, and how, where it is not the usual way."""
    setting = replay.spec.setting
    ways = [word for word in (setting.isolation, setting.sources) if word not in ("fresh", "original")]
    return " ".join([_label(replay), f"#{setting.repeat}", *ways])


def _label(replay: Replay) -> str:
    return f"{replay.spec.question.label()} ({replay.spec.question.device})"


def _judged(replay: Replay, verdict: Verdict) -> FinalResult | None:
    why = "; ".join(verdict.reasons)
    if verdict.word == AS_EXPECTED:
        return None
    if verdict.word == CANNOT_SAY:
        return Skipped(_line(why))
    made = Failure(_line(why), verdict.word)
    made.text = _text(ending(replay.plain) if replay.plain else "the plain pass has not run")
    return made


# Another setting.


def _setting(other: ComputerSetting, found: Across) -> TestSuite:
    number = next((at for at, one in enumerate(found.classes, 1) if other in one.members), None)
    own = next((at for at, one in enumerate(found.classes, 1) if found.here in one.members), None)
    properties = [
        ("from", other.origin),
        ("computer", found.host(other)),
        ("class", "none" if number is None else str(number)),
        ("class of this setting", "none" if own is None else str(own)),
        *((label(name), value(other, name, found.here)) for name in differing(found.here, other)),
    ]
    pairs = found.by_setting[other.name]
    return _suite(
        other.name, properties, [_case(one.ours, _label(one.ours), _compared(one), one.theirs) for one in pairs]
    )


def _compared(pair: Pair) -> FinalResult | None:
    agreement = pair.agreement
    if not pair.compared or agreement.word == RANKS[6]:
        return Skipped(_line(agreement.rule))
    ended = [replay.plain.outcome.kind for replay in (pair.ours, pair.theirs) if replay and replay.plain]
    if sum(kind in ENDED for kind in ended) == 1:
        made: FinalResult = Error(_line(agreement.first), f"{ended[0]} here, {ended[1]} there")
    elif pair.differs:
        made = Failure(_line(agreement.first), agreement.word)
    else:
        return None
    made.text = _text(agreement.rule)
    return made
