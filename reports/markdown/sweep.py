"""The report on a sweep as markdown. Pure: same values, same bytes; no time, no path, no order of a set.

Text that comes from records is shown as code, so nothing in it can become markup.
"""

from __future__ import annotations

from collections import Counter
from typing import Mapping, Sequence

from experiments.analysis.series import Curve, Measured
from experiments.analysis.settings import flatten_facts
from experiments.core.agreement import RANKS
from experiments.core.canonical_json import digest, printable_text
from experiments.core.observation import Operator
from experiments.core.operator_diff import Step
from experiments.core.quantities import format_count, range_cell
from experiments.core.replay import Replay
from experiments.core.shell_words import exact_pattern, make_command
from experiments.core.text import visible_text
from experiments.core.verdict import (
    CANNOT_DECIDE,
    CANNOT_SAY,
    NOT_TESTED,
    REFUTED,
    SUPPORTED,
    SUPPORTED_IN_PART,
    Ruling,
    Verdict,
)
from reports.claims.claim import Advice, Claim
from reports.comparison import Case, Comparison, Numbers, Operators, record_digests
from reports.figures import curve_name, plain_number, scale
from reports.markdown.elements import block, code, count, details, html, prose, table

SHOWN = 12
"""Digits of a digest in a table."""
CONTEXT = 6
"""Operators shown on each side of the first difference."""
MESSAGE = 4
"""Lines shown of a message."""


def render_report(
    name: str,
    replays: Sequence[Replay],
    comparison: Comparison,
    rulings: Sequence[tuple[Claim, Ruling]],
    advice: Sequence[tuple[Advice, Ruling]] = (),
    images: Mapping[str, str] | None = None,
    others: Sequence[Sequence[str]] = (),
    elsewhere: Mapping[str, Sequence[str]] | None = None,
    excluded: Sequence[str] = (),
) -> str:
    """Render the report on the sweep `name`.

    `images` are the file names of figures by series; None shows no figures. `others` are the sections on other
    settings, and `elsewhere` the digests of the records that these rest on, by origin. `excluded` has a sentence for
    each exclusion.
    """
    sections = (
        [*_head(name, replays, comparison, elsewhere or {}), *_exclusion_lines(excluded)],
        _verdicts(comparison),
        *others,
        _notes(rulings, advice),
        _series(comparison, images or {}),
        _operators(comparison),
        _numbers(comparison),
        _repeats(comparison),
        _gaps(comparison),
        _machine(comparison),
        _repeat_commands(replays),
        _digests(replays, elsewhere or {}),
    )
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _head(
    name: str, replays: Sequence[Replay], comparison: Comparison, elsewhere: Mapping[str, Sequence[str]]
) -> list[str]:
    listed = record_digests(replays)
    torch = ", ".join(sorted({str(facts["torch"]["version"]) for _, facts in comparison.machines})) or "unknown"
    return [
        f"# Evidence report: sweep {code(name)}",
        "",
        f"{len(listed)} records; SHA-256 over the list of their digests: {code(digest(''.join(listed)))}. "
        "What is said of this sweep rests on them, and each is named by its digest at the end."
        + (_ELSEWHERE if elsewhere else ""),
        "",
        f"**Question.** `checkpoint` runs a function again when gradients are computed. Does the second run agree "
        f"with the first, and if not, how does that show and what puts it right? Asked of torch {code(torch)}.",
    ]


def _exclusion_lines(said: Sequence[str]) -> list[str]:
    """Say what was excluded, by whom, when and why."""
    if not said:
        return []
    return ["", "**Excluded** from all of this, by somebody's decision:", "", *(f"- {code(one)}" for one in said)]


_ELSEWHERE = (
    " What is said of other settings rests on records that are kept elsewhere: where, and a digest over all of them, "
    "stands at the end too."
)


def _verdicts(comparison: Comparison) -> list[str]:
    """Return one table of all scenarios, then the cases of each, folded."""
    counts = Counter(one.verdict.word for case in comparison.cases for one in case.judged)
    scenarios = list(dict.fromkeys(case.scenario for case in comparison.cases))
    grouped = {name: [case for case in comparison.cases if case.scenario == name] for name in scenarios}
    rows = [_scenario_row(name, cases, comparison) for name, cases in grouped.items()]
    lines = [
        "## Verdicts",
        "",
        f"Replays: {', '.join(f'{counts[word]} {word}' for word in sorted(counts)) or 'none'}."
        + (f" {sum(counts.values())} in all; a replay has one record for each of its passes." if counts else ""),
        "",
    ]
    lines += table(("what goes wrong", "scenario", "broken", "repairs", "controls", "verdict"), rows)
    for name, cases in grouped.items():
        lines += ["", *details(f"Cases of {name}", _cases(cases))]
    return lines


def _scenario_row(name: str, cases: Sequence[Case], comparison: Comparison) -> list[str]:
    roles = Counter(case.first.replay.spec.mark.role for case in cases)
    words = Counter(one.verdict.word for case in cases for one in case.judged)
    verdicts = ", ".join(f"{words[word]} {word}" for word in sorted(words))
    title = prose(comparison.titles.get(name, ""))
    return [title, code(name), *(str(roles[role] or "") for role in ("broken", "repair", "control")), verdicts]


def _cases(cases: Sequence[Case]) -> list[str]:
    listed = [case for case in cases if not case.is_float64]
    head = ("case", "role", "outcome", "verdict", "replays", "record")
    return [*table(head, [_case_row(case) for case in listed]), *_controls(listed)]


def _case_row(case: Case) -> list[str]:
    record = case.first.replay.plain
    return [
        code(case.label),
        prose(case.first.replay.spec.mark.role),
        "; ".join(code(text) for text in case.endings),
        "; ".join(dict.fromkeys(_verdict_word(one.verdict) for one in case.judged)),
        str(len(case.judged)),
        "" if record is None else code(digest(record.text())[:SHOWN]),
    ]


def _verdict_word(verdict: Verdict) -> str:
    """Return the verdict, with the reason if it cannot be decided."""
    if verdict.word != CANNOT_SAY:
        return verdict.word
    return f"{verdict.word}: {prose('; '.join(verdict.reasons))}"


def _controls(cases: Sequence[Case]) -> list[str]:
    whys = {case.label.partition("[")[0]: case.first.replay.spec.mark.why for case in cases}
    found = [f"- {code(label)} cannot break here: {prose(why)}." for label, why in whys.items() if why]
    return ["", *found] if found else []


def _notes(rulings: Sequence[tuple[Claim, Ruling]], advice: Sequence[tuple[Advice, Ruling]]) -> list[str]:
    """Return each note in one page: what was right, what was not, what to do instead, each with its records."""
    lines: list[str] = []
    for note in dict.fromkeys(claim.note for claim, _ in rulings):
        own = [(claim, ruling) for claim, ruling in rulings if claim.note == note]
        counts = Counter(ruling.word for _, ruling in own)
        counted = ", ".join(f"{counts[word]} {word}" for word, _ in _STORY if counts[word])
        lines += ["", f"## The {prose(note.name)} in one page", "", prose(note.about), ""]
        lines += [f"Of {count(len(own), 'claim', 'claims')}: {counted}."]
        for word, heading in _STORY:
            listed = [_claim_item(claim, ruling) for claim, ruling in own if ruling.word == word]
            lines += ["", f"**{heading}**", "", *listed] if listed else []
        instead = [(one, ruling) for one, ruling in advice if one.note == note]
        lines += _advice_section(instead)
    return lines[1:]


_STORY = (
    (SUPPORTED, "What was right"),
    (SUPPORTED_IN_PART, "What was right in part"),
    (REFUTED, "What was not right"),
    (CANNOT_DECIDE, "What these records cannot decide"),
    (NOT_TESTED, "What was not tested here"),
)


def _claim_item(claim: Claim, ruling: Ruling) -> str:
    return f"- **{claim.id}** {prose(claim.text)} — {prose(ruling.reason)}.{_citation(ruling)}"


def _advice_section(advice: Sequence[tuple[Advice, Ruling]]) -> list[str]:
    """Return the advice that these records bear out, then the advice that they do not."""
    supported = [f"- {prose(one.text)} ({prose(r.reason)}){_citation(r)}" for one, r in advice if r.word == SUPPORTED]
    open_ = [f"- {prose(one.text)} ({prose(r.reason)}){_citation(r)}" for one, r in advice if r.word != SUPPORTED]
    lines = ["", "**What to do instead**", "", *supported] if supported else []
    return (
        [*lines, "", "**What might be done instead, not borne out by these records**", "", *open_] if open_ else lines
    )


def _citation(ruling: Ruling) -> str:
    """Cite the records that a sentence rests on: three of them, and how many more."""
    if not ruling.digests:
        return ""
    more = f" and {len(ruling.digests) - 3} more" if len(ruling.digests) > 3 else ""
    return f" [{' '.join(code(name[:SHOWN]) for name in ruling.digests[:3])}{more}]"


def _series(comparison: Comparison, images: Mapping[str, str]) -> list[str]:
    """Return the points measured over a parameter, with their figures."""
    if not comparison.series:
        return []
    lines = ["## Measured over a parameter"]
    for one in comparison.series:
        title = prose(one.series.title)
        lines += ["", f"### {title}"]
        lines += ["", f"![{title}]({images[one.series.name]})"] if one.series.name in images else []
        lines += ["", f"{code(one.series.scenario)}, {prose(one.series.measure)} over {code(one.series.parameter)}."]
        lines[-1] += f" {_MEDIANS}"
        lines += ["", *_fit_items(one), "", *_point_table(one)]
    return lines


_MEDIANS = (
    "Where it was measured several times, the median of the runs with the smallest and the largest, to two digits; "
    "exponents are fitted through every run, and their standard error is from how far the runs lie off the line."
)


def _fit_items(one: Measured) -> list[str]:
    """Return what was fitted for each curve, to how many runs, and whether it was expected."""
    return [
        f"- {code(curve_name(curve, one.curves))}, {curve.runs}: "
        + (f"{prose(curve.reason)}: **{curve.word}**." if curve.word else _fit_sentence(curve))
        for curve in one.curves
    ]


def _fit_sentence(curve: Curve) -> str:
    return f"exponent {curve.fit}, nothing expected." if curve.fit else "no power law fits."


def _point_table(one: Measured) -> list[str]:
    """Return a row for each place: the value of every curve, and its ratio to the line."""
    per, unit = scale(one)
    line = dict(one.line)
    head = [code(one.series.parameter), *(f"{code(curve_name(c, one.curves))} ({unit})" for c in one.curves)]
    if line:
        head += [
            f"{code(one.series.line)} ({unit})",
            *(f"{code(curve_name(c, one.curves))} / line" for c in one.curves),
        ]
    rows = []
    for at in dict.fromkeys(place.at for curve in one.curves for place in curve.places):
        values = [next((place.values for place in curve.places if place.at == at), ()) for curve in one.curves]
        cells = [_run_values(found, per) for found in values]
        if line:
            under = line.get(at)
            cells += ["" if under is None else plain_number(under / per)]
            cells += [_run_values(found, under) if under else "" for found in values]
        rows.append([prose(at if isinstance(at, str) else plain_number(at)), *cells])
    return table(head, rows)


def _run_values(values: Sequence[float], per: float) -> str:
    """Return what the runs at one place measured, in units of `per`. Empty if there are none."""
    return range_cell([value / per for value in values]) if values else ""


def _operators(comparison: Comparison) -> list[str]:
    """Return the broken cases whose recomputation ran other operators."""
    broken = [o for o in comparison.operators if o.case.first.replay.spec.mark.role == "broken" and o.first is not None]
    if not broken:
        return []
    first, *others = sorted(broken, key=lambda one: bool(one.case.first.replay.spec.question.parameters))
    lines = ["## Operators: forward against recomputation", "", *_operator_table(first)]
    if others:
        rows = [_first_difference_row(one) for one in others]
        rest = table(("case", "forward", "recomputation"), rows)
        lines += ["", *details("First difference in the other broken cases that recompute", rest)]
    return lines


def _operator_table(found: Operators) -> list[str]:
    place = found.first or 0
    start, end = max(0, place - CONTEXT), min(len(found.steps), place + CONTEXT + 1)
    rows = [
        [
            str(index),
            _operator_cell(step.left),
            _operator_cell(step.right),
            "**first difference**" if index == place else _step_mark(step),
        ]
        for index, step in list(enumerate(found.steps))[start:end]
    ]
    return [
        f"{code(found.case.scenario)} {code(found.case.label)}, profiled in a process of its own (record "
        f"{code(digest(found.record.text())[:SHOWN])}). Places {start} to {end - 1} of {len(found.steps)}, aligned; "
        "a dot for each operator around. A recomputation may stop early, so what only the forward pass has at the "
        "end is no difference; `aten::detach`, which checkpoint adds when it saves, is left out.",
        "",
        *table(("place", "forward", "recomputation", ""), rows),
        *_message_lines(found.case),
    ]


def _message_lines(case: Case) -> list[str]:
    """Return the head of the error message, which names the tensors."""
    record = case.first.replay.plain
    if record is None or record.outcome.kind != "raised":
        return []
    head = "\n".join((record.outcome.message or "").strip().splitlines()[:MESSAGE])
    return ["", f"What the plain pass ended with, {code(record.outcome.type or '')}, first lines:", "", block(head)]


def _step_mark(step: Step) -> str:
    return "" if step.same else "differs"


def _operator_cell(operator: Operator | None) -> str:
    if operator is None:
        return ""
    shapes = ", ".join("x".join(map(str, shape)) for shape in operator.shapes if shape)
    return f"{'· ' * operator.depth}{code(operator.name)}{f' ({shapes})' if shapes else ''}"


def _first_difference_row(found: Operators) -> list[str]:
    step = found.steps[found.first or 0]
    return [code(f"{found.case.scenario} {found.case.label}"), _operator_cell(step.left), _operator_cell(step.right)]


def _numbers(comparison: Comparison) -> list[str]:
    """Return the differences from the reference: the widest tensor of each case, then all tensors, folded."""
    rows = [row for row in comparison.numbers if not row.against_reference.same_bits]
    same = _cases_with_equal_bits(comparison)
    lines = [
        "## Differences in numbers",
        "",
        f"{count(len(same), 'case has', 'cases have')} the bits of the reference ",
    ]
    lines[-1] += "in every output and gradient."
    if rows:
        widest: dict[int, Numbers] = {}
        for row in sorted(rows, key=lambda one: -one.share):
            widest.setdefault(id(row.case), row)
        widest_rows = [row for row in rows if widest[id(row.case)] is row]
        lines += ["", _MEASURE, "", *table(_HEAD, [_numbers_row(row) for row in widest_rows])]
        lines += [
            "",
            *details(f"All {len(rows)} tensors that differ", table(_HEAD, [_numbers_row(row) for row in rows])),
        ]
    if same:
        listed = [f"- {code(f'{scenario} {label}')}" for scenario, label in same]
        lines += ["", *details("Cases with the bits of their reference", listed)]
    return lines


_HEAD = (
    "scenario and case",
    "tensor",
    "largest difference from reference",
    "ULP",
    "equal bits",
    "own error",
    "reference's error",
    "rounding allows an error of",
)
_MEASURE = (
    "Of each of the others, the tensor that comes closest to what rounding allows. Errors are against the reference "
    "in float64 from the same inputs; a case that calculates something else, as some are meant to, errs by that. "
    "Rounding allows twice what the reference errs plus its last place; a single number, which can be right by "
    "chance, may be off by as large a share of its value as the other tensors. Of a tensor that either side "
    "does not keep whole a fixed sample of at most 1024 elements is compared."
)


def _cases_with_equal_bits(comparison: Comparison) -> list[tuple[str, str]]:
    whole: dict[tuple[str, str], bool] = {}
    for row in comparison.numbers:
        key = (row.case.scenario, row.case.label)
        whole[key] = whole.get(key, row.case.is_whole) and row.against_reference.same_bits
    return [key for key, same in whole.items() if same]


def _numbers_row(row: Numbers) -> list[str]:
    item = row.against_reference
    return [
        f"{code(row.case.scenario.rpartition('/')[2])} {code(row.case.label)}",
        f"{prose(item.role)} {code(item.name)}",
        f"{item.absolute:.3g}",
        format_count(item.ulp),
        f"{item.equal_bits} of {item.compared}" + ("" if item.compared == item.elements else f" (of {item.elements})"),
        "" if row.own_error is None else f"{row.own_error.absolute:.3g}",
        "" if row.allowed is None else f"{row.allowed.own_error:.3g}",
        "" if row.allowed is None else f"{row.allowed.total:.3g}",
    ]


def _repeats(comparison: Comparison) -> list[str]:
    if not comparison.repeats:
        return []
    counts = Counter(row.agreement.rank for row in comparison.repeats)
    exact = len(comparison.repeats) == counts[1]
    copied = sum(row.copied for row in comparison.repeats)
    audited = sum(row.audited for row in comparison.repeats)
    remarks = [
        f"{number} {how}"
        for number, how in (
            (copied, "of them once from sources copied to another folder, whose digests are those of the originals"),
            (audited, "of them both in a fork of a warm interpreter and in a fresh one under another hash seed"),
        )
        if number
    ]
    lines = [
        "## Do replays agree?",
        "",
        f"{count(len(comparison.repeats), 'case was', 'cases were')} "
        + ", ".join(["replayed more than once, each time in a process of its own", *remarks])
        + ". "
        + ("**All replays agree exactly**: their evidence digests are equal." if exact else "Not all agree exactly:"),
    ]
    rows = [
        [code(row.case.label), RANKS[row.agreement.rank], prose(row.agreement.rule), code(row.agreement.first)]
        for row in comparison.repeats
        if row.agreement.rank != 1
    ]
    return [*lines, "", *table(("case", "agreement", "rule", "first difference"), rows)] if rows else lines


def _gaps(comparison: Comparison) -> list[str]:
    if not comparison.gaps:
        return []
    reasons: dict[str, list[str]] = {}
    for what, why in comparison.gaps:
        reasons.setdefault(why, []).append(what)
    lines = ["## What could not be compared"]
    for why, cases in reasons.items():
        lines += ["", f"{prose(why)}: {count(len(cases), 'case', 'cases')}.", ""]
        lines += [f"- {code(what)}" for what in cases]
    return lines


MAIN_FACTS = (
    "torch.version",
    "cpu.model",
    "cpu.capability",
    "cpu.usable_cores",
    "switches.threads",
    "gpu.name",
    "system.name",
    "system.libc",
    "python.version",
)
"""Facts that a reader looks for first."""


def _machine(comparison: Comparison) -> list[str]:
    if not comparison.machines:
        return []
    every = [flatten_facts(facts) for _, facts in comparison.machines]
    names = sorted({name for one in every for name in one})
    same = [name for name in names if len({one.get(name) for one in every}) == 1]
    other = [name for name in names if name not in same]
    head = ("fact", "value")
    lines = [
        "## The computer and its setting",
        "",
        *table(head, [[code(n), code(every[0][n])] for n in MAIN_FACTS if n in same]),
    ]
    if other:
        heads = [code(name[:SHOWN]) for name, _ in comparison.machines]
        rows = [[code(name), *(code(one.get(name, "")) for one in every)] for name in other]
        lines += ["", "Facts that differ between processes:", "", *table(("fact", *heads), rows)]
    rest = [[code(name), code(every[0][name])] for name in same if name not in MAIN_FACTS]
    return [*lines, "", *details("All other facts, the same in every process", table(head, rest)), *_builds(comparison)]


def _builds(comparison: Comparison) -> list[str]:
    texts = {
        text: name
        for _, facts in comparison.machines
        for name, text in sorted(facts["torch"].items())
        if isinstance(text, str) and "\n" in text
    }
    lines: list[str] = []
    for text, name in texts.items():
        lines += [
            "",
            f"<details><summary>torch.{html(name)}, SHA-256 {digest(printable_text(text))[:SHOWN]}</summary>",
            "",
            block(text, 20000),
        ]
        lines += ["", "</details>"]
    return lines


def _repeat_commands(replays: Sequence[Replay]) -> list[str]:
    names = list(dict.fromkeys(replay.spec.question.scenario for replay in replays))
    lines = [
        "## How to repeat it",
        "",
        "In a clone, `make run-all` runs everything and writes a report like this one. One scenario at a time:",
        "",
        "```sh",
        *(make_command("run-all", SCENARIO=exact_pattern(visible_text(name))) for name in names),
        "```",
    ]
    broken = next((r for r in replays if r.spec.mark.role == "broken"), None)
    if broken is not None:
        question = broken.spec.question
        lines += [
            "",
            "One case, to paste anywhere:",
            "",
            "```sh",
            make_command(
                "snippet", SCENARIO=exact_pattern(visible_text(question.scenario)), CASE=visible_text(question.label())
            ),
            "```",
        ]
    return lines


def _digests(replays: Sequence[Replay], elsewhere: Mapping[str, Sequence[str]]) -> list[str]:
    rows = [
        [code(digest(record.text())), code(_replay_label(replay)), name, code(record.evidence_digest()[:SHOWN])]
        for replay in replays
        for name, record in sorted(replay.records.items())
    ]
    return [
        "## Digests",
        "",
        "`python -m store show DIGEST` shows a record, `python -m store check` recomputes every digest.",
        "",
        *details("All records", table(("record", "case", "pass", "evidence"), rows)),
        *_other_records_table(elsewhere),
    ]


def _other_records_table(elsewhere: Mapping[str, Sequence[str]]) -> list[str]:
    """Return where the records of other settings are, their number, and a digest over the list of their digests."""
    rows = [[code(name), str(len(listed)), code(digest("".join(sorted(listed))))] for name, listed in elsewhere.items()]
    if not rows:
        return []
    head = ("records of other settings are in", "records", "SHA-256 over the sorted list of their digests")
    return ["", *table(head, rows)]


def _replay_label(replay: Replay) -> str:
    question, setting = replay.spec.question, replay.spec.setting
    return f"{question.scenario} {question.label()} {question.device} #{setting.repeat} {setting.sources}"
