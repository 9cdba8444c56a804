"""The comparison of a sweep with other settings and computers, as markdown. Pure: same values, same bytes."""

from __future__ import annotations

from collections import Counter
from typing import Iterator, Mapping, Sequence

from experiments.analysis.agreement_classes import Class
from experiments.analysis.causes import PROVEN, REPEATS, Cause
from experiments.analysis.settings import ComputerSetting, differing_factors, label, value
from experiments.core.agreement import RANKS
from experiments.core.quantities import format_share
from experiments.core.replay import Replay
from reports.claims.published_outcomes import Reported, compare_outcome
from reports.markdown.elements import code, count, details, prose, table
from reports.setting_comparison import BIN_NAMES, CANNOT, Across, Pair, is_ruler

SHOWN = 40
"""Most rows of a table that are shown; the rest is folded."""
MOST_FACTORS = 200
"""Most rows of the table of facts: a foreign document may have any number. A worker records 75."""


def page(found: Across, image: str = "") -> list[list[str]]:
    """Return the sections of the report on other settings; `image` is the file name of the figure."""
    if not found.others and not found.reported and not found.failed:
        return []
    parts = (
        _placement_section(found),
        funnel(found),
        _cause_section(found),
        _outcome_matrix(found),
        _difference_section(found, image),
    )
    return [part for part in (*parts, _uncompared_section(found)) if part]


# Where this setting falls.


def _placement_section(found: Across) -> list[str]:
    lines = ["## This setting among others", "", placement(found), ""]
    rows = [_setting_row(one, found) for one in (found.here, *found.others)]
    head = ("setting", "computer", "from", "torch", "CPU capability", "threads", "cases", "class")
    lines += [*table(head, rows), "", *_computer_notes(found), *_class_table(found)]
    return [*lines, *_fact_tables(found)]


def placement(found: Across) -> str:
    """Say in one or two sentences how this setting agrees with the others."""
    if not found.others:
        return "Nothing that was asked here was run under another setting: there is nothing to compare with."
    own = next((one for one in found.classes if found.here in one.members), None)
    with_ = [member for member in (own.members if own else ()) if member is not found.here]
    alike = f"has exactly the evidence of {_settings_by_computer(with_, found)}" if with_ else "has evidence of its own"
    most = Counter(pair.agreement.word for pair in found.pairs if pair.compared)
    ranks = ", ".join(f"{most[word]} {word}" for word in RANKS.values() if most[word])
    return (
        f"This setting of this computer {alike}, in all cases that they share. "
        f"Over all pairs of a case here and under another setting: {ranks or 'none'}."
    )


def _settings_by_computer(listed: Sequence[ComputerSetting], found: Across) -> str:
    """Count settings by computer: those of one computer do not confirm each other."""
    inside = [one.name for one in listed if found.is_same_host(one)]
    outside = [one for one in listed if not found.is_same_host(one)]
    parts = []
    if inside:
        counted = count(len(inside), "other setting", "other settings")
        parts.append(f"{counted} with the host identity of this computer ({_names(inside)})")
    if outside:
        counted = count(len(outside), "setting", "settings")
        computers = count(len({one.computer for one in outside}), "other computer", "other computers")
        parts.append(f"{counted} of {computers} ({_names([one.name for one in outside])})")
    return " and ".join(parts)


def _names(names: Sequence[str]) -> str:
    return ", ".join(code(name) for name in names)


def _setting_row(one: ComputerSetting, found: Across) -> list[str]:
    facts = {name: text for many in one.factors.values() for name, text in many.items()}
    number = next((at for at, each in enumerate(found.classes, 1) if one in each.members), None)
    return [
        code(one.name),
        _computer_number(one, found),
        prose(one.origin),
        code(facts.get("torch.version", "")),
        code(facts.get("cpu.capability", "")),
        prose(facts.get("switches.threads", "")),
        str(sum(not is_ruler(replay) for replay in one.by_case.values())),
        "" if number is None else str(number),
    ]


def _computer_number(one: ComputerSetting, found: Across) -> str:
    return str(found.computers.index(one.computer) + 1) if one.computer else "not told"


def _computer_notes(found: Across) -> list[str]:
    """Explain once for all tables what a computer and its number mean."""
    whole = (found.here, *found.others)
    counted = [
        f"{at} has {count(sum(one.computer == name for one in whole), 'setting', 'settings')}"
        for at, name in enumerate(found.computers, 1)
        if name
    ]
    first = "Computer 1 is the host identity of this one: a copy of its image would have it too. "
    return [
        "A setting is how the processes of a computer ran. Computers are told apart and numbered by host identity, a "
        "digest of node name and machine id, which is all that their records know of it. "
        f"{first if found.here.computer else ''}Computer {', '.join(counted) or 'none is told'}.",
        "",
    ]


def _class_table(found: Across) -> list[str]:
    """Return the table of classes: representative, outliers, and the first difference of each from ours."""
    if not found.classes:
        return []
    shared = any(len(one.members) > 1 for one in found.classes)
    rows = []
    for number, one in enumerate(found.classes, 1):
        alone = shared and len(one.members) == 1
        rows.append(
            [
                str(number) + (" (outlier)" if alone else ""),
                code(one.representative.name),
                _names([member.name for member in one.members]),
                _class_span(one),
                _first_difference(one.members, found),
            ]
        )
    head = ("class", "representative", "members", "spans", "first difference from this setting")
    explanation = (
        "Settings of one class have equal evidence digests in every case that they share; an outlier is alone in its "
        "class. Settings of one computer that agree are no independent confirmation of each other."
    )
    return [explanation, "", *table(head, rows)]


def _class_span(one: Class) -> str:
    computers = "one computer" if one.computers == 1 else f"{one.computers} computers"
    return f"{count(len(one.members), 'setting', 'settings')} of {computers}"


def _first_difference(members: Sequence[ComputerSetting], found: Across) -> str:
    if found.here in members:
        return ""
    pairs = [pair for pair in found.by_setting[members[0].name] if pair.compared and pair.agreement.rank > 1]
    pair = min(pairs, key=lambda one: one.agreement.rank == CANNOT, default=None)
    if pair is None:
        return ""
    return f"{code(f'{pair.scenario} {pair.label}')}: {pair.agreement.word}{_agreement_reason(pair)}"


def _agreement_reason(pair: Pair) -> str:
    """Return the rule, which says what differs, and the difference itself."""
    agreement = pair.agreement
    return "".join(
        f": {text}" for text in (prose(agreement.rule), code(agreement.first) if agreement.first else "") if text
    )


def _fact_tables(found: Across) -> list[str]:
    """Return the tables of facts that differ between settings and of those that are the same everywhere."""
    whole = (found.here, *found.others)
    names = sorted({name for one in whole for name in one.factors})
    unlike = {one.name: set(differing_factors(found.here, one)) for one in found.others}
    other = [name for name in names if any(name in factors for factors in unlike.values())]
    lines = []
    if other:
        split = {one.factor: one for one in found.splits}
        ranked = [*(one.factor for one in found.splits if one.factor in other), *(n for n in other if n not in split)]
        rows = [
            [
                prose(label(name)),
                f"{split[name].decides} of {split[name].of}" if name in split else "0",
                f"{split[name].along} of {split[name].pairs}" if name in split else "0",
                *("; ".join(_fact_values(name, one, found, unlike)) for one in whole),
            ]
            for name in ranked[:MOST_FACTORS]
        ]
        head = ("factor", "would decide", "goes along with", *(code(one.name) for one in whole))
        explanation = (
            "What differs between the settings. A factor would decide a case whose evidence is not the same everywhere "
            "if settings of one value always have one evidence; it goes along with a difference between this setting "
            "and another if it differs, too. Neither proves a cause: see below. Empty: as here."
        )
        more = ["", f"And {count(len(ranked) - len(rows), 'fact', 'facts')} more."] if ranked[MOST_FACTORS:] else []
        lines = ["", "### Facts that split the settings", "", explanation, "", *table(head, rows), *more]
    same = [name for name in names if name not in other and name in found.here.factors]
    rows = [[prose(label(name)), code(value(found.here, name))] for name in same]
    return [*lines, "", *details("Facts that are equal everywhere", table(("factor", "value"), rows))]


def _fact_values(name: str, one: ComputerSetting, found: Across, unlike: Mapping[str, set[str]]) -> Iterator[str]:
    if one is found.here:
        yield code(_shorten(value(found.here, name)))
    elif name in unlike[one.name]:
        yield code(_shorten(value(one, name, found.here)))


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


# The funnel.


def funnel(found: Across) -> list[str]:
    """Return the table from planned cases to equal ones, for each setting."""
    ran = sum(
        not is_ruler(replay) and replay.plain is not None and replay.plain.outcome.kind != "not_run"
        for replay in found.here.by_case.values()
    )
    head = ("setting", "computer", "planned here", "ran here", "ran there too", *RANKS.values())
    rows = [
        [
            code(one.name),
            _computer_number(one, found),
            str(found.planned),
            str(ran),
            str(sum(pair.compared for pair in found.by_setting[one.name])),
            *(_pair_count(found.by_setting[one.name], number) for number in RANKS),
        ]
        for one in found.others
    ]
    explanation = (
        "Cases, without the float64 references that only measure rounding. Rounding is measured: two settings may "
        "differ by what the reference errs under each against float64, or by what rounding allows under each where the "
        "case is right to it under both, or by what repeats under one setting differ by."
    )
    return ["## From planned to same", "", explanation, "", *table(head, rows)] if rows else []


def _pair_count(pairs: Sequence[Pair], number: int) -> str:
    return str(sum(pair.agreement.rank == number and pair.compared for pair in pairs) or "")


# Causes.


def _cause_section(found: Across) -> list[str]:
    rows = [
        [code(name), prose(label(one.factor)), code(_shorten(one.ours)), code(_shorten(one.theirs)), *_proof_cells(one)]
        for name, listed in found.causes.items()
        for one in listed
    ]
    rows += [[code(name), "none that is recorded", "", "", said, "", ""] for name, said in _unexplained_settings(found)]
    if not rows:
        return []
    proven = Counter(one.factor for listed in found.causes.values() for one in listed if one.word == PROVEN)
    proven_text = ", ".join(
        f"{label(name)} ({count(number, 'setting', 'settings')})" for name, number in sorted(proven.items())
    )
    head = ("setting", "factor", "here", "there", "cause", "cases that followed", "shown by")
    return [
        "## Why the bits differ",
        "",
        f"**Proven causes: {prose(proven_text)}.**" if proven_text else "**No cause is proven.**",
        "",
        _PROOF,
        "",
        *table(head, rows),
    ]


def _unexplained_settings(found: Across) -> Iterator[tuple[str, str]]:
    """Yield the settings whose evidence differs from ours although no recorded fact does, and a sentence on each."""
    for name, listed in found.causes.items():
        unlike = [pair for pair in found.by_setting[name] if pair.compared and pair.agreement.rank != 1]
        if unlike and not listed:
            sentence = (
                f"{count(len(unlike), 'case gives', 'cases give')} other evidence; a case may not repeat its own: "
                "run it again to see"
            )
            yield name, sentence


_PROOF = (
    "A cause is proven by a counter-replay alone: one sweep, run here besides the one that it explains, in which the "
    "control (this setting again) gives the bits of this report and the run with that one factor flipped gives those "
    f"from there, each at least {REPEATS} times, in every case that differs. What differs in one factor alone, however "
    "often, is no proof. `make replay PROVE=SETTING` runs the counter-replays that can be run here. What is the "
    "computer's (kernel, libc, compilers, processor, GPU) is changed by no setting of a process."
)


def _proof_cells(one: Cause) -> list[str]:
    followed = f"{one.followed} of {one.of}" if one.by else ""
    return [f"**{one.word}**" if one.word == PROVEN else prose(one.words), followed, _proof_source(one)]


def _proof_source(one: Cause) -> str:
    if not one.by:
        return prose(one.why)
    untried = one.of - one.tried
    return f"counter-replay {code(one.by)}" + (
        f"; {count(untried, 'case', 'cases')} not run so often" if untried else ""
    )


# The matrix.


def _outcome_matrix(found: Across) -> list[str]:
    """Return the table of scenarios by setting: how the cases end, and how far they agree."""
    scenarios = list(dict.fromkeys(replay.spec.question.scenario for replay in found.here.replays))
    head = (
        "scenario",
        "here",
        *(code(one.name) for one in found.others),
        *(code(r.name) for r in found.reported),
    )
    rows = [
        [
            code(name),
            _ending_counts([replay for replay in found.here.by_case.values() if _is_of_scenario(replay, name)]),
            *(
                _agreement_cell([pair for pair in found.by_setting[other.name] if pair.scenario == name])
                for other in found.others
            ),
            *(_reported_cell(one, name, found) for one in found.reported),
        ]
        for name in scenarios
    ]
    lines = ["## Scenarios by setting", "", _READ, "", *table(head, rows)]
    for one in found.reported:
        lines += ["", *_reported_table(one, found)]
    return lines


_READ = (
    "Each cell counts cases: how they end here; beside it, how far each other setting agrees. Bold is a difference "
    "beyond rounding. The last columns are the published notes: reported, not replayed, so only outcomes are compared."
)


def _is_of_scenario(replay: Replay, scenario: str) -> bool:
    return replay.spec.question.scenario == scenario and not is_ruler(replay)


def _ending_counts(replays: Sequence[Replay]) -> str:
    kinds = Counter(replay.plain.outcome.kind for replay in replays if replay.plain is not None)
    return ", ".join(f"{number} {prose(kind)}" for kind, number in kinds.most_common())


def _agreement_cell(pairs: Sequence[Pair]) -> str:
    words = Counter(pair.agreement.rank if pair.compared else 6 for pair in pairs)
    parts = []
    for number, word in RANKS.items():
        if words[number]:
            text = f"{words[number]} {word if number != 6 else 'not compared'}"
            parts.append(f"**{text}**" if 2 < number < 6 else text)
    return ", ".join(parts)


def _reported_cell(one: Reported, scenario: str, found: Across) -> str:
    words = Counter(compare_outcome(told, found.here.replays)[0] for told in one.told if told.scenario == scenario)
    return ", ".join(f"{number} {prose(word)}" for word, number in sorted(words.items()))


def _reported_table(one: Reported, found: Across) -> list[str]:
    rows = []
    for outcome in one.told:
        word, here = compare_outcome(outcome, found.here.replays)
        case = f"{outcome.scenario} {outcome.case}" + "".join(f" {key}={text}" for key, text in outcome.where)
        ended = outcome.error or outcome.kind
        rows.append(
            [prose(outcome.claim), code(case), f"{prose(ended)}: {prose(outcome.text)}", prose(here), prose(word)]
        )
    head = ("claim", "case", "reported", "here", "agreement")
    return details(f"{one.name} ({one.facts}): reported against here", table(head, rows))


# Numbers.


def _difference_section(found: Across, image: str) -> list[str]:
    rows = []
    for one in found.distances:
        if not one.elements:
            continue
        shares = [format_share(number, one.elements) for number in one.counts]
        rows.append([code(one.setting), str(one.tensors), str(one.elements), *shares, str(one.largest)])
    listed = [pair for pair in found.pairs if pair.compared and 1 < pair.agreement.rank < CANNOT]
    if not rows and not listed:
        return []
    lines = ["## Differences in numbers between settings"]
    if rows:
        explanation = (
            "Gradients against this setting, element by element, in units in the last place (ULP) of their own dtype. "
            "Of a gradient that either side does not keep whole a fixed sample of at most 1024 elements is compared."
        )
        head = ("setting", "gradients", "elements", *BIN_NAMES, "largest")
        lines += ["", explanation, "", *([f"![Gradients by ULP]({image})", ""] if image else []), *table(head, rows)]
    beyond = [pair_row(pair) for pair in found.differing]
    head = ("setting", "case", "agreement", "rule", "first difference")
    if beyond:
        lines += ["", f"{count(len(beyond), 'pair differs', 'pairs differ')} beyond rounding:", ""]
        lines += table(head, beyond[:SHOWN])
        if beyond[SHOWN:]:
            lines += ["", *details(f"{len(beyond) - SHOWN} more", table(head, beyond[SHOWN:]))]
    within = [pair_row(pair) for pair in listed if not pair.differs]
    if within:
        title = f"{count(len(within), 'pair is', 'pairs are')} equal within rounding, with the rule that decided it"
        lines += ["", *details(title, table(head[:4], [row[:4] for row in within]))]
    return lines


def pair_row(pair: Pair) -> list[str]:
    """Return the cells of one pair: setting, case, agreement, rule, first difference."""
    return [
        code(pair.setting),
        code(f"{pair.scenario} {pair.label}"),
        pair.agreement.word,
        prose(pair.agreement.rule),
        code(pair.agreement.first) if pair.agreement.first else "",
    ]


def _uncompared_section(found: Across) -> list[str]:
    """Return the table of what could not be compared, by reason and setting."""
    reasons: dict[str, dict[str, list[Pair]]] = {}
    for pair in found.pairs:
        if not pair.compared or pair.agreement.rank == CANNOT:
            reasons.setdefault(pair.agreement.rule, {}).setdefault(pair.setting, []).append(pair)
    rows = [
        [prose(why), code(setting), str(len(pairs)), _names(sorted({pair.scenario for pair in pairs})[:6])]
        for why, by_setting in sorted(reasons.items())
        for setting, pairs in by_setting.items()
    ]
    rows += [[prose(one.reason), code(one.name), "", ""] for one in found.failed]
    if not rows:
        return []
    head = ("why", "setting", "cases", "of")
    return ["## What could not be compared with other settings", "", *table(head, rows)]
