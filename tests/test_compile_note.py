"""The claims of the DFlash note: what published records say of them, and that contrary records say the contrary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mutations import Change, ended_otherwise, less_memory, more_memory, other_tensors, removed, seen

from experiments.core.record import Record
from experiments.core.replay import Replay
from experiments.core.verdict import CANNOT_DECIDE, NOT_TESTED, REFUTED, SUPPORTED, SUPPORTED_IN_PART
from experiments.planning import catalogue
from reports.claims.compile_note import (
    ANOTHER_MASK,
    BACKWARD,
    DRAFTER,
    LIMITS,
    LOGITS,
    MASK,
    MEMORY,
    NO_GRAPH,
    RACE,
    RECOMPILES,
    REFUSAL,
    REFUSED,
    SPARSITY,
    TRACES,
    WAYS,
    WITHOUT_LIMITS,
)
from reports.claims.findings import Cases
from reports.claims.registry import ADVICE, CLAIMS

EVERY = {one.id: one for one in (*CLAIMS, *ADVICE)}
OWN = [name for name in EVERY if name.startswith("B")]


def test_every_claim_of_the_note_is_there():
    assert [claim.id for claim in CLAIMS if claim.id.startswith("B")] == [f"B{number}" for number in range(1, 16)]


@pytest.fixture(scope="module")
def decided(published):
    whole = published.evidence()
    return {name: EVERY[name].decide(whole) for name in OWN}


# Contrary records.


def refused(record: Record) -> Record:
    """As torch refuses a call that it takes for one that is traced."""
    ended = replace(
        record.outcome, kind="raised", phase="forward", type="builtins.RuntimeError", bases=(), message=REFUSAL
    )
    return seen(replace(record, outcome=ended), outcome=ended) or record


def finished(record: Record) -> Record:
    ended = replace(record.outcome, kind="finished", phase=None, type=None, bases=(), message=None)
    return seen(replace(record, outcome=ended), outcome=ended) or record


def observing(**values: Any) -> Change:
    """With other values of what it observed; underscores stand for spaces."""
    named = {name.replace("_", " "): value for name, value in values.items()}

    def change(record: Record) -> Record | None:
        made = record.observation.observed if record.observation else ()
        return seen(record, observed=tuple(replace(one, value=named.get(one.name, one.value)) for one in made))

    return change


def asking_for(number: int) -> Change:
    def change(record: Record) -> Record:
        ended = replace(record.outcome, message=f"DefaultCPUAllocator: you tried to allocate {number} bytes.")
        return seen(replace(record, outcome=ended), outcome=ended) or record

    return change


def taking(number: int) -> Change:
    """Each phase takes so many bytes at its peak."""

    def change(record: Record) -> Record | None:
        rows = record.observation.memory if record.observation else ()
        return seen(record, memory=tuple(replace(row, peak=(row.before or 0) + number) for row in rows))

    return change


def holding(number: int) -> Change:
    """Each phase holds so many bytes at its end."""

    def change(record: Record) -> Record | None:
        rows = record.observation.memory if record.observation else ()
        return seen(record, memory=tuple(replace(row, after=(row.before or 0) + number) for row in rows))

    return change


def cases(scenario: str, *names: str, **where: Any) -> Cases:
    return Cases(scenario, names, tuple(where.items()))


@dataclass(frozen=True)
class Contrary:
    """What a claim becomes when these cases show something else."""

    claim: str
    word: str
    changes: tuple[tuple[Cases, Change], ...]
    said: str
    """Words that the reason then has."""


UNCOMPILED, COMPILED = cases(MEMORY, "uncompiled"), cases(MEMORY, "compiled")
ALONE = cases(TRACES, "nothing_traces", checkpoint_kind="non-reentrant")
NO_CONFLICT = cases(TRACES, "called_while_another_thread_traces", checkpoint_kind="none")
TRACED = cases(TRACES, "called_while_another_thread_traces", checkpoint_kind="reentrant")
COMPILING = cases(BACKWARD, "called_while_another_backward_is_compiled", checkpoint_kind="reentrant")
INSIDE = cases(WAYS, "attention_inside_the_checkpoint", checkpoint_kind="reentrant")
DRAWN_ANEW = cases(RECOMPILES, ANOTHER_MASK)
WHOLE = cases(LOGITS, "checkpointed_as_a_whole", "checkpointed_as_a_whole_and_reentrant")

CONTRARY = (
    Contrary("B1", SUPPORTED, (), "uncompiled, the forward peak holds all scores"),
    Contrary(
        "B1",
        REFUTED,
        ((UNCOMPILED, taking(2**33)), (COMPILED, taking(2**33))),
        "uncompiled, the forward peak is not that of all scores",
    ),
    Contrary("B1", SUPPORTED_IN_PART, ((UNCOMPILED, less_memory),), "the forward peak is not that of all scores"),
    Contrary("B1", CANNOT_DECIDE, ((UNCOMPILED, removed),), "not run: attention/dense_fallback_memory uncompiled"),
    Contrary("B2", REFUTED, (), "the real call does not ask for 298 GB, but for 343,597,383,680 bytes"),
    Contrary(
        "B2",
        SUPPORTED,
        (
            (cases(REFUSED, "uncompiled", keys=81920), asking_for(298 * 10**9)),
            (cases(REFUSED, "counted"), observing(**{"one_score_tensor,_bytes": 328 * 10**9})),
        ),
        "the real call asks for 298 GB",
    ),
    Contrary("B3", REFUTED, (), "are those of a dense masked calculation"),
    Contrary("B3", SUPPORTED, ((cases(MASK, "uncompiled"), "without_the_mask"),), "values are not those of a dense"),
    Contrary("B3", CANNOT_DECIDE, ((cases(MASK, "without_the_mask"), "uncompiled"),), "nothing tells whether a mask"),
    Contrary("B4", SUPPORTED, (), "compiled, a sixteenth of the blocks takes"),
    Contrary(
        "B4",
        REFUTED,
        (
            (
                cases(SPARSITY, "compiled"),
                observing(**{"time_at_density_0.0625,_of_that_at_density_1": 0.97}),
            ),
        ),
        "takes 0.97 (one run) of the time of all, more than half",
    ),
    Contrary("B5", REFUTED, (), "is not refused, and is right"),
    Contrary("B5", SUPPORTED, ((ALONE, refused),), "under checkpoint(use_reentrant=False) is refused"),
    Contrary("B5", CANNOT_DECIDE, ((ALONE, other_tensors),), "it cannot be said"),
    Contrary("B6", REFUTED, (), "with use_reentrant=True a call is refused"),
    Contrary(
        "B6", SUPPORTED, ((TRACED, finished), (COMPILING, finished), (ALONE, refused)), "use_reentrant=True avoids it"
    ),
    Contrary("B6", SUPPORTED_IN_PART, ((ALONE, refused),), "compiled functions are refused under use_reentrant=False"),
    Contrary("B6", CANNOT_DECIDE, ((NO_CONFLICT, finished),), "there is nothing to be avoided"),
    Contrary("B7", SUPPORTED, (), "the forward peak holds all scores"),
    Contrary(
        "B7",
        REFUTED,
        (
            (cases(MEMORY, "compiled_but_forced_to_run_eagerly", "called_where_the_compiler_is_disabled"), less_memory),
            (COMPILED, taking(2**33)),
        ),
        "compiled with a block mask it holds all scores as well",
    ),
    Contrary("B8", SUPPORTED_IN_PART, (), "two threads are enough for it to fail: 1 of 1 training failed"),
    Contrary(
        "B8", SUPPORTED, ((cases(DRAFTER, "all_threads_from_cold", threads=2), finished),), "0 of 1 training failed"
    ),
    Contrary(
        "B8",
        REFUTED,
        (
            (cases(DRAFTER, "all_threads_from_cold", threads=3), finished),
            (cases(DRAFTER, "all_threads_from_cold", threads=1), refused),
        ),
        "one thread is enough for it to fail",
    ),
    Contrary("B9", SUPPORTED, (), "is refused all the same"),
    Contrary("B9", REFUTED, ((cases(TRACES, "compiled_for_its_own_thread"), finished),), "is not refused"),
    Contrary("B9", CANNOT_DECIDE, ((NO_CONFLICT, finished),), "there is nothing to be avoided"),
    Contrary("B10", SUPPORTED_IN_PART, (), "graphs: 1 for 6 compiled steps"),
    Contrary(
        "B10", SUPPORTED, ((DRAWN_ANEW, observing(graphs=4, steps_that_ran_compiled=4)),), "each mask is compiled anew"
    ),
    Contrary("B10", REFUTED, ((DRAWN_ANEW, observing(graphs=1, steps_that_ran_compiled=6)),), "serves other masks"),
    Contrary("B11", SUPPORTED_IN_PART, (), "as much is taken at the peak"),
    Contrary("B11", SUPPORTED, ((WHOLE, less_memory),), "less is taken at the peak"),
    Contrary("B11", REFUTED, ((WHOLE, holding(500 * 2**20)),), "as much is held"),
    Contrary("B12", SUPPORTED, (), "it recomputes to the end"),
    Contrary(
        "B12",
        REFUTED,
        tuple((limit, no_limit) for _, limit in LIMITS for no_limit in ("not a limit",)),
        "not shown: it recomputes to the end",
    ),
    Contrary("B12", SUPPORTED_IN_PART, ((LIMITS[-1][1], observing(steps_counted=1)),), "not shown: it recomputes"),
    Contrary("B12", SUPPORTED, ((LIMITS[-1][1], removed),), f"not run: {LIMITS[-1][1].name}"),
    Contrary("B14", SUPPORTED, (), "3.6 times 95 GB"),
    Contrary("B14", REFUTED, ((cases(REFUSED, "uncompiled", keys=81920), asking_for(10**9)),), "1,000,000,000 bytes"),
    Contrary("B15", REFUTED, (), "with attention inside a reentrant checkpoint it is refused as well"),
    Contrary("B15", SUPPORTED, ((INSIDE, finished),), "with attention inside a reentrant checkpoint it is not refused"),
    Contrary(
        "B15",
        CANNOT_DECIDE,
        ((cases(WAYS, "attention_inside_the_checkpoint", checkpoint_kind="non-reentrant"), finished),),
        "there is nothing to be avoided",
    ),
    *(
        Contrary(f"B-{number}", SUPPORTED, (), "losses and gradients are those of uncompiled replicas")
        for number in (1, 2, 3, 4)
    ),
    Contrary(
        "B-1",
        SUPPORTED_IN_PART,
        (
            (
                cases(RACE, "forward_and_backward_compiled_before_the_threads_start"),
                observing(rounds_that_failed=1),
            ),
        ),
        "1 of 3 rounds failed",
    ),
    Contrary("B-3", REFUTED, ((cases(RACE, "a_process_for_each_replica"), refused),), "not shown"),
    Contrary("B-5", REFUTED, ((COMPILED, taking(17 * 2**20)),), "it was more, or not right: its forward peak was 17"),
    Contrary("B-6", REFUTED, ((DRAWN_ANEW, observing(graphs=2)),), "it is not compiled once"),
    Contrary(
        "B-6",
        SUPPORTED,
        ((cases(RECOMPILES, ANOTHER_MASK, mask="closure"), observing(graphs=6)),),
        "a mask whose tensor changes at each step (graphs: 1 for 6 compiled steps) it is compiled once",
    ),
    Contrary("B-7", REFUTED, ((cases(MASK, "lists_with_a_mask_function"), ended_otherwise),), "not shown"),
    Contrary("B-8", REFUTED, ((cases(LOGITS, "in_checkpointed_chunks"), more_memory),), "not shown"),
    Contrary("B-9", SUPPORTED, (), "it has one of its own: it refuses torch.func.grad inside"),
    Contrary("B-9", REFUTED, tuple((one, ended_otherwise) for one in WITHOUT_LIMITS), "not right where"),
    *(
        Contrary("B-9", SUPPORTED_IN_PART, ((one, ended_otherwise),), f"not right where {told}")
        for (told, _), one in zip(LIMITS, WITHOUT_LIMITS, strict=True)
    ),
    Contrary("B-9", CANNOT_DECIDE, ((WITHOUT_LIMITS[0], removed),), f"not run: {WITHOUT_LIMITS[0].name}"),
)


@pytest.mark.parametrize("one", CONTRARY, ids=lambda one: f"{one.claim} {one.word}")
def test_contrary_records_give_the_contrary_ruling(one, published, decided):
    decide = EVERY[one.claim].decide
    scenarios = {published.by_name[name].spec.question.scenario for name in decided[one.claim].digests}
    kept = published.about(scenarios)
    changed = {}
    for wanted, change in one.changes:
        for name, record in kept.by_name.items():
            if wanted.has_replay(_replay(record)):
                changed[name] = _changed(record, change, kept)
    assert bool(changed) == bool(one.changes)
    ruling = decide(kept.evidence(changed))
    assert ruling.word == one.word, ruling
    assert one.said in ruling.reason


def _replay(record):
    return Replay({record.spec.question.pass_: record})


def _changed(record, change, kept):
    """By a function; or into what another case of the scenario observed; or into what has no limit."""
    if not isinstance(change, str):
        return change(record)
    if change == "not a limit":
        return _without_its_limit(record)
    other = next(
        one
        for one in kept.by_name.values()
        if (one.spec.question.scenario, one.spec.question.case) == (record.spec.question.scenario, change)
    )
    return seen(record, tensors=other.observation.tensors)


def _without_its_limit(record):
    """Finished, with a gradient for everything, and nothing repeated or attached."""
    gradients = tuple(
        replace(one, digest=one.digest or "0" * 64) if one.role == "gradient" else one
        for one in record.observation.tensors
    )
    harmless = {"steps counted": 1, "target requires a gradient": False}
    made = finished(seen(record, tensors=gradients))
    if any(expected["kind"] == "differs" for expected in record.spec.mark.expectations):
        ended = replace(record.outcome, kind="raised", phase="forward", type="builtins.ZeroDivisionError")
        made = seen(replace(made, outcome=ended), outcome=ended)
    return observing(**{name.replace(" ", "_"): value for name, value in harmless.items()})(made)


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_said_without_records(name, published):
    assert EVERY[name].decide(published.about(()).evidence()).word == NOT_TESTED


@pytest.mark.parametrize("name", [name for name in OWN if name != "B13"])
def test_what_is_lacking_is_named(name, published):
    ruling = EVERY[name].decide(published.about(()).evidence())
    assert ruling.reason.startswith("not run here: ")
    assert ruling.digests == ()


def test_contrary_records_of_every_claim_are_tried(decided):
    """Of what is borne out, some that refute it in part at least; of what is refuted, some that support it."""
    contrary = {SUPPORTED: {REFUTED, SUPPORTED_IN_PART}, REFUTED: {SUPPORTED}, SUPPORTED_IN_PART: {SUPPORTED, REFUTED}}
    same = {"B-2": "B-1", "B-4": "B-1"}
    """Advised in the same words."""
    for name in OWN:
        if name != "B13":
            tried = {one.word for one in CONTRARY if one.claim == same.get(name, name) and one.changes}
            assert contrary[decided[name].word] & tried, name


def test_a_limit_is_shown_by_broken_cases_alone(published, decided):
    """All but one of the broken cases of these scenarios, which is a limit of the other kind."""
    ruling = decided["B12"]
    cited = [published.by_name[name] for name in ruling.digests]
    roles = [record.spec.mark.role for record in cited]
    assert set(roles) == {"broken", "reference"}
    named = {(scenario, name) for _, one in LIMITS for scenario in [one.scenario] for name in one.names}
    broken = {
        (record.spec.question.scenario, record.spec.question.case)
        for record in published.by_name.values()
        if record.spec.mark.role == "broken" and record.spec.question.scenario in {scenario for scenario, _ in named}
    }
    assert broken - named == {(NO_GRAPH, "transformed_inside_and_not_reentrant")}
    assert named <= broken


def test_what_is_said_of_attention_inside_the_checkpoint_rests_on_it(published, decided):
    ruling = decided["B15"]
    cases_ = {published.by_name[name].spec.question.label() for name in ruling.digests}
    inside = {label for label in cases_ if label.startswith("attention_inside_the_checkpoint")}
    assert len(inside) == 4, "both kinds, traced during forward and during backward"


# What claims and advice name must be there.


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    found = catalogue.read_cached(Path(catalogue.ROOT), tmp_path_factory.mktemp("cache"))
    return {entry.name: entry for entry in found.entries}


@pytest.mark.parametrize("cases_", [*(one for _, one in LIMITS), *WITHOUT_LIMITS], ids=lambda one: one.name)
def test_every_case_that_is_named_is_in_the_catalogue(cases_, listed):
    entry = listed[cases_.scenario]
    assert entry.error is None
    roles = {case["name"]: case["role"] for case in entry.cases}
    wanted = "repair" if cases_ in WITHOUT_LIMITS else "broken"
    assert {roles.get(name) for name in cases_.names} == {wanted}
