"""A sweep beside other machines, as markdown. Pure: same values, same bytes."""

from __future__ import annotations

from collections import Counter
from typing import Iterator, Sequence

from experiments.agreement import RANKS
from experiments.classes import PROVEN, Cause, Machine, differing, value
from experiments.record import Replay
from reports.across import BIN_NAMES, CANNOT, Across, Pair, is_ruler
from reports.pieces import count, folded, prose, table
from reports.reported import Reported, compared
from store.publisher import code

SHOWN = 40
"""Rows of a table that are shown; the rest is folded."""


def page(found: Across, image: str = "") -> list[list[str]]:
    """The sections of the report on other machines; `image` is the file name of the figure."""
    if not found.others and not found.reported:
        return []
    parts = (_where(found), funnel(found), _causes(found), _matrix(found), _differences(found, image))
    return [part for part in (*parts, _not_compared(found)) if part]


# Where this machine falls.


def _where(found: Across) -> list[str]:
    lines = ["## This machine among others", "", placed(found), ""]
    rows = [_machine_row(machine, found) for machine in (found.here, *found.others)]
    lines += table(("machine", "from", "torch", "CPU capability", "threads", "host", "cases", "class"), rows)
    lines += ["", *_classes(found)]
    return [*lines, *_equal_everywhere(found)]


def placed(found: Across) -> str:
    """In one sentence."""
    own = next((one for one in found.classes if found.here in one.members), None)
    with_ = [member.name for member in (own.members if own else ()) if member is not found.here]
    alike = f"has exactly the evidence of {_names(with_)}" if with_ else "has the evidence of no other machine"
    most = Counter(pair.agreement.word for pair in found.pairs if pair.compared)
    shown = ", ".join(f"{most[word]} {word}" for word in RANKS.values() if most[word])
    if not found.others:
        return "No other machine has run what was asked here: there is nothing to compare with."
    return (
        f"This machine {alike}, in all cases that they share. Over all pairs with another machine: {shown or 'none'}."
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(code(name) for name in names)


def _machine_row(machine: Machine, found: Across) -> list[str]:
    facts = {name: text for many in machine.factors.values() for name, text in many.items()}
    number = next((at for at, one in enumerate(found.classes, 1) if machine in one.members), None)
    same_host = machine.factors.get("host") == found.here.factors.get("host")
    return [
        code(machine.name),
        prose(machine.origin),
        code(facts.get("torch.version", "")),
        code(facts.get("cpu.capability", "")),
        prose(facts.get("switches.threads", "")),
        "this one" if same_host else "another",
        str(sum(not is_ruler(replay) for replay in machine.by_case.values())),
        "" if number is None else str(number),
    ]


def _classes(found: Across) -> list[str]:
    """Classes with representative and outliers, and the first difference of each from ours."""
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
                _first(one.members, found),
            ]
        )
    head = ("class", "representative", "members", "first difference from this machine")
    said = "Machines of one class have equal evidence digests in every case that they share"
    return [f"{said}; an outlier is alone in its class.", "", *table(head, rows)]


def _first(members: Sequence[Machine], found: Across) -> str:
    if found.here in members:
        return ""
    pairs = [pair for pair in found.by_machine[members[0].name] if pair.compared and pair.agreement.rank > 1]
    pair = min(pairs, key=lambda one: one.agreement.rank == CANNOT, default=None)
    if pair is None:
        return ""
    return f"{code(f'{pair.scenario} {pair.label}')}: {pair.agreement.word}{_why(pair)}"


def _why(pair: Pair) -> str:
    text = pair.agreement.first or pair.agreement.rule
    return f": {code(text)}" if text else ""


def _equal_everywhere(found: Across) -> list[str]:
    """Facts that are the same on all machines, said once, and those that are not."""
    whole = (found.here, *found.others)
    names = sorted({name for machine in whole for name in machine.factors})
    other = [name for name in names if any(name in differing(found.here, machine) for machine in found.others)]
    lines = []
    if other:
        split = {one.factor: one for one in found.splits}
        ranked = [*(one.factor for one in found.splits if one.factor in other), *(n for n in other if n not in split)]
        rows = [
            [
                prose(name),
                f"{split[name].decides} of {split[name].of}" if name in split else "0",
                f"{split[name].along} of {split[name].pairs}" if name in split else "0",
                *("; ".join(_values(name, machine, found)) for machine in whole),
            ]
            for name in ranked
        ]
        head = ("factor", "would decide", "goes along with", *(code(machine.name) for machine in whole))
        said = (
            "What differs between the machines. It would decide a case whose evidence is not the same everywhere if "
            "machines of one value always have one evidence; it goes along with a difference between this machine and "
            "another if it differs, too. Neither proves a cause: see below. Empty: as here."
        )
        lines = ["", "### Facts that split the machines", "", said, "", *table(head, rows)]
    same = [name for name in names if name not in other and name in found.here.factors]
    rows = [[prose(name), code(value(found.here, name))] for name in same]
    return [*lines, "", *folded("Facts that are equal everywhere", table(("factor", "value"), rows))]


def _values(name: str, machine: Machine, found: Across) -> Iterator[str]:
    if machine is found.here:
        yield code(_short(value(found.here, name)))
    elif name in differing(found.here, machine):
        yield code(_short(value(machine, name, found.here)))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


# The funnel.


def funnel(found: Across) -> list[str]:
    """From what was planned to what is the same."""
    ran = sum(
        not is_ruler(replay) and replay.plain is not None and replay.plain.outcome.kind != "not_run"
        for replay in found.here.by_case.values()
    )
    head = ("machine", "planned here", "ran here", "ran there too", *RANKS.values())
    rows = [
        [
            code(machine.name),
            str(found.planned),
            str(ran),
            str(sum(pair.compared for pair in found.by_machine[machine.name])),
            *(_counted(found.by_machine[machine.name], number) for number in RANKS),
        ]
        for machine in found.others
    ]
    said = (
        "Cases, without the float64 references that only measure rounding. Rounding is measured: two machines may "
        "differ by what the reference errs on each against float64, or by what rounding allows on each where the case "
        "is right to it on both, or by what repeats on one machine differ by."
    )
    return ["## From planned to same", "", said, "", *table(head, rows)] if rows else []


def _counted(pairs: Sequence[Pair], number: int) -> str:
    return str(sum(pair.agreement.rank == number and pair.compared for pair in pairs) or "")


# Causes.


def _causes(found: Across) -> list[str]:
    rows = [
        [code(name), prose(one.factor), code(_short(one.ours)), code(_short(one.theirs)), *_proof(one)]
        for name, listed in found.causes.items()
        for one in listed
    ]
    if not rows:
        return []
    proven = Counter(one.factor for listed in found.causes.values() for one in listed if one.word == PROVEN)
    said = ", ".join(f"{factor} ({count(number, 'machine', 'machines')})" for factor, number in sorted(proven.items()))
    lines = ["## Why the bits differ", ""]
    lines += [f"**Proven causes: {prose(said)}.**" if said else "**No cause is proven yet.**", ""]
    lines += [
        "A cause is proven when a machine that differs from this one in that factor alone has, in every case that "
        "differs, the bits of the other. `make replay PROVE=MACHINE` flips what can be flipped here and was not.",
        "",
        *table(("machine", "factor", "here", "there", "cause", "cases that followed", "shown by"), rows),
    ]
    return lines


def _proof(one: Cause) -> list[str]:
    followed = f"{one.followed} of {one.of}" if one.by else ""
    return [
        f"**{one.word}**" if one.word == PROVEN else prose(one.word),
        followed,
        code(one.by) if one.by else prose(one.why),
    ]


# The matrix.


def _matrix(found: Across) -> list[str]:
    """A row for each scenario, a column for each machine: how its cases end, and how far they agree."""
    scenarios = list(dict.fromkeys(replay.spec.question.scenario for replay in found.here.replays))
    head = (
        "scenario",
        "here",
        *(code(machine.name) for machine in found.others),
        *(code(r.name) for r in found.reported),
    )
    rows = [
        [
            code(name),
            _endings([replay for replay in found.here.by_case.values() if _of(replay, name)]),
            *(
                _cell([pair for pair in found.by_machine[machine.name] if pair.scenario == name])
                for machine in found.others
            ),
            *(_told(one, name, found) for one in found.reported),
        ]
        for name in scenarios
    ]
    lines = ["## Scenarios by machine", "", _READ, "", *table(head, rows)]
    for one in found.reported:
        lines += ["", *_reported(one, found)]
    return lines


_READ = (
    "Each cell counts cases: how they end here; beside it, how far each other machine agrees. Bold is a difference "
    "beyond rounding. The last columns are the published notes: reported, not replayed, so only outcomes are compared."
)


def _of(replay: Replay, scenario: str) -> bool:
    return replay.spec.question.scenario == scenario and not is_ruler(replay)


def _endings(replays: Sequence[Replay]) -> str:
    kinds = Counter(replay.plain.outcome.kind for replay in replays if replay.plain is not None)
    return ", ".join(f"{number} {prose(kind)}" for kind, number in kinds.most_common())


def _cell(pairs: Sequence[Pair]) -> str:
    words = Counter(pair.agreement.rank if pair.compared else 6 for pair in pairs)
    shown = []
    for number, word in RANKS.items():
        if words[number]:
            text = f"{words[number]} {word if number != 6 else 'not compared'}"
            shown.append(f"**{text}**" if 2 < number < 6 else text)
    return ", ".join(shown)


def _told(one: Reported, scenario: str, found: Across) -> str:
    words = Counter(compared(told, found.here.replays)[0] for told in one.told if told.scenario == scenario)
    return ", ".join(f"{number} {prose(word)}" for word, number in sorted(words.items()))


def _reported(one: Reported, found: Across) -> list[str]:
    rows = []
    for told in one.told:
        word, here = compared(told, found.here.replays)
        case = f"{told.scenario} {told.case}" + "".join(f" {key}={text}" for key, text in told.where)
        ended = told.error or told.kind
        rows.append([prose(told.claim), code(case), f"{prose(ended)}: {prose(told.text)}", prose(here), prose(word)])
    head = ("claim", "case", "reported", "here", "agreement")
    return folded(f"{one.name} ({one.facts}): reported against here", table(head, rows))


# Numbers.


def _differences(found: Across, image: str) -> list[str]:
    rows = []
    for one in found.distances:
        if not one.elements:
            continue
        shares = [f"{100 * number / one.elements:.1f} %" if number else "" for number in one.counts]
        rows.append([code(one.machine), str(one.tensors), str(one.elements), *shares, str(one.largest)])
    listed = [pair for pair in found.pairs if pair.compared and 1 < pair.agreement.rank < CANNOT]
    if not rows and not listed:
        return []
    lines = ["## Differences in numbers between machines"]
    if rows:
        said = (
            "Gradients against this machine, element by element, in units in the last place (ULP) of their own dtype. "
            "Of gradients over 16 KiB a fixed sample of 1024 elements is compared."
        )
        head = ("machine", "gradients", "elements", *BIN_NAMES, "largest")
        lines += ["", said, "", *([f"![Gradients by ULP]({image})", ""] if image else []), *table(head, rows)]
    beyond = [pair_row(pair) for pair in found.differing]
    head = ("machine", "case", "agreement", "rule", "first difference")
    if beyond:
        lines += ["", f"{count(len(beyond), 'pair differs', 'pairs differ')} beyond rounding:", ""]
        lines += table(head, beyond[:SHOWN])
        if beyond[SHOWN:]:
            lines += ["", *folded(f"{len(beyond) - SHOWN} more", table(head, beyond[SHOWN:]))]
    within = [pair_row(pair) for pair in listed if not pair.differs]
    if within:
        title = f"{count(len(within), 'pair is', 'pairs are')} equal within rounding, with the rule that decided it"
        lines += ["", *folded(title, table(head[:4], [row[:4] for row in within]))]
    return lines


def pair_row(pair: Pair) -> list[str]:
    return [
        code(pair.machine),
        code(f"{pair.scenario} {pair.label}"),
        pair.agreement.word,
        prose(pair.agreement.rule),
        code(pair.agreement.first) if pair.agreement.first else "",
    ]


def _not_compared(found: Across) -> list[str]:
    """What could not be compared, by reason and machine."""
    reasons: dict[str, dict[str, list[Pair]]] = {}
    for pair in found.pairs:
        if not pair.compared or pair.agreement.rank == CANNOT:
            reasons.setdefault(pair.agreement.rule, {}).setdefault(pair.machine, []).append(pair)
    if not reasons:
        return []
    rows = [
        [prose(why), code(machine), str(len(pairs)), _names(sorted({pair.scenario for pair in pairs})[:6])]
        for why, by_machine in sorted(reasons.items())
        for machine, pairs in by_machine.items()
    ]
    head = ("why", "machine", "cases", "of")
    return ["## What could not be compared with other machines", "", *table(head, rows)]
