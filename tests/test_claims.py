"""Each claim of the note is decided by the records of its own calculation, and only by those that are there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from commands import forked

from experiments.core.canonical_json import digest
from experiments.core.expectations import expectation_to_json
from experiments.core.observation import Observed, Operator, Source
from experiments.core.replay import Replay, replays
from experiments.core.verdict import CANNOT_DECIDE, NOT_TESTED, REFUTED, SUPPORTED, SUPPORTED_IN_PART
from experiments.scenario import agrees
from reports.claims.checkpoint_note import BROKEN, CLAIMS, FLASH, MATH, NOTE, REPAIRS, SILENT
from reports.claims.findings import gather
from reports.claims.notes import CHECKPOINT_NOTE, COMPILE_NOTE
from reports.claims.registry import ADVICE, decide
from store.archive import Archive

ROOT = Path(__file__).parents[1]
IDS = [f"A{number}" for number in range(1, 14)]
EVERY = [*IDS, *(f"B{number}" for number in range(1, 16))]
ERROR = "torch.utils.checkpoint.CheckpointError"
MESSAGE = """\
torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the forward.
tensor at position 0:
saved metadata: {'shape': torch.Size([2, 8, 4]), 'dtype': torch.float32, 'device': device(type='cpu')}
recomputed metadata: {'shape': torch.Size([1, 2, 8, 4]), 'dtype': torch.float32, 'device': device(type='cpu')}
tensor at position 1:
saved metadata: {'shape': torch.Size([2, 4, 8]), 'dtype': torch.float32, 'device': device(type='cpu')}
recomputed metadata: {'shape': torch.Size([1, 2, 8, 4]), 'dtype': torch.float32, 'device': device(type='cpu')}
.

Tip: advice that changes from version to version."""
BITWISE, ROUNDED = ((expectation_to_json(agrees(**{how: True})),) for how in ("bitwise", "within_rounding"))
NAMES = ("query", "key", "value")


class Note:
    """Replays of the note's scenario on one machine; `last` is added to the last number of its tensors."""

    def __init__(self, bench=None, *, last=0.0, **facts):
        self.bench = bench or samples.Bench()
        self.last = last
        self.machine = samples.facts(**facts)
        self.made = []

    def spec(self, case, scenario=NOTE, **changes):
        return samples.spec(case, scenario=scenario, **changes)

    def tensors(self, numbers=(4096.0, 2.0), dtype="float32"):
        numbers = (*numbers[:-1], numbers[-1] + self.last)
        gradients = [self.bench.tensor("gradient", name, numbers, dtype) for name in NAMES]
        return [self.bench.tensor("output", "attended", numbers, dtype), *gradients]

    def add(self, asked, *tensors, profiled=None, **seen):
        records = [self.bench.record(asked, *tensors, machine=self.machine, **seen)]
        if profiled is not None:
            looked = replace(asked, question=replace(asked.question, pass_="profiled"))
            listed = {phase: (Operator(0, 0, name, ()),) for phase, name in profiled.items()}
            records.append(self.bench.record(looked, *tensors, machine=self.machine, operators=listed, **seen))
        self.made.append(self.bench.replay(*records))
        return self.made[-1]

    def broken(self, repeats=3, message=MESSAGE, kind=ERROR, *, forward=MATH, recomputation=FLASH, **changes):
        tensors = changes.pop("tensors", [self.bench.absent("gradient", name) for name in NAMES])
        ended = changes.pop("ended", replace(samples.outcome("raised", message), type=kind))
        operators = {"forward": forward, "recomputation": recomputation}
        for repeat in range(repeats):
            asked = self.spec(BROKEN, **settled(repeat, repeats), **changes)
            self.add(asked, *tensors, ended=ended, profiled=operators)
        return self

    def references(self, scenario=NOTE, name="not_checkpointed", dtype="float32", **changes):
        """Marks of a case, after its references."""
        asked = self.spec(name, scenario, role="reference", dtype=dtype, input_dtype=dtype, **changes)
        exact = self.spec(name, scenario, role="reference", dtype="float64", input_dtype=dtype, **changes)
        self.add(asked, *self.tensors(dtype=dtype))
        self.add(exact, *self.tensors((4096.0, 2.25), dtype="float64"))
        return {"reference": asked.question.case_digest(), "float64": exact.question.case_digest()}

    def repairs(self, repeats=3, numbers=(4096.0, 2.0), names=REPAIRS, **how):
        marks = self.references()
        for name in names:
            for repeat in range(repeats):
                asked = self.spec(name, role="repair", expectations=BITWISE, **marks, **settled(repeat, repeats))
                self.add(asked, *self.tensors(numbers), **how)
        return self

    def default(self, numbers=(4096.0, 2.0)):
        marks = self.references(name="not_checkpointed_by_default")
        self.add(self.spec("default_throughout", role="control", expectations=BITWISE, **marks), *self.tensors(numbers))
        return self

    def once(self, case, *tensors, **seen):
        self.add(self.spec(case), *tensors, **seen)
        return self

    def silent(self, numbers=(4096.0, 2.5), dtype="float32", size="small"):
        marks = self.references(SILENT, dtype=dtype, parameters={"size": size})
        asked = self.spec(
            BROKEN, SILENT, expectations=ROUNDED, parameters={"size": size}, dtype=dtype, input_dtype=dtype, **marks
        )
        self.add(asked, *self.tensors(numbers, dtype))
        return self

    def evidence(self, *others):
        made = [*self.made, *(replay for other in others for replay in other.made)]
        machines = {**self.bench.machines, **{k: v for other in others for k, v in other.bench.machines.items()}}
        return gather(made, self.fetch(*others), machines)

    def fetch(self, *others):
        blobs = {**self.bench.blobs, **{k: v for other in others for k, v in other.bench.blobs.items()}}
        return blobs.get

    def ruling(self, name, *others):
        evidence = self.evidence(*others)
        ruling = {claim.id: ruling for claim, ruling in decide(evidence)}[name]
        known = {digest(record.text()) for replay in evidence.replays for record in replay.records.values()}
        assert set(ruling.digests) <= known, "a ruling names records that there are"
        assert bool(ruling.digests) == (ruling.word != NOT_TESTED)
        assert len(set(ruling.digests)) == len(ruling.digests)
        assert ruling.reason
        return ruling

    def word(self, name, *others):
        return self.ruling(name, *others).word


def settled(repeat, repeats):
    return {"repeat": repeat, "sources": "copied" if repeats > 1 and repeat == repeats - 1 else "original"}


def documented(note, *warns, text="sha"):
    seen = [Observed("sha256 of the docstring", text * 4, "evidence", None)]
    seen += [Observed(f"warns of {index}", value, "evidence", None) for index, value in enumerate(warns)]
    return note.once("documented", observed=tuple(seen))


def whole():
    """Everything that a sweep of the note leaves when every claim holds."""
    note = Note().broken().repairs().default().silent()
    note.once("one_context_given_twice", ended=replace(samples.outcome("raised", "no"), type="AttributeError"))
    return documented(note, True, True)


# All of them.


def test_there_are_thirteen_claims_of_one_source():
    assert [claim.id for claim in CLAIMS] == IDS
    assert {claim.note for claim in CLAIMS} == {CHECKPOINT_NOTE}


def test_a_note_says_what_is_known_of_it():
    assert "encountered while building Vesper" in CHECKPOINT_NOTE.about
    assert "torch 2.11.0+cu128, Python 3.12.10, Windows" in CHECKPOINT_NOTE.about
    assert "The 298 GB Attention Matrix: Debugging the Torch.Compile-Checkpoint Conflict" in COMPILE_NOTE.about
    assert "message 9351 of a training log" in COMPILE_NOTE.about
    for note in (CHECKPOINT_NOTE, COMPILE_NOTE):
        assert "No address or author of it is known to us" in note.about


@pytest.mark.parametrize("name", IDS)
def test_nothing_is_said_without_records(name):
    assert Note().word(name) == NOT_TESTED


@pytest.mark.parametrize("name", IDS)
def test_records_of_another_scenario_decide_nothing(name):
    note = Note()
    for case in (BROKEN, *REPAIRS, "default_throughout", "one_context_given_twice", "documented"):
        note.add(note.spec(case, "checkpoint/another"), profiled={"forward": MATH, "recomputation": FLASH})
    assert note.word(name) == NOT_TESTED


@pytest.mark.parametrize("name", IDS)
def test_a_case_that_has_not_run_decides_nothing(name):
    note = Note()
    ended = replace(samples.outcome("not_run"), detail="cuda")
    for case in (BROKEN, *REPAIRS, "default_throughout", "one_context_given_twice", "documented"):
        note.add(note.spec(case), ended=ended, profiled={"forward": MATH})
    assert note.word(name) == NOT_TESTED


def test_a_sweep_in_which_everything_holds_supports_every_claim_but_that_others_may_differ():
    note = whole()
    words = {name: note.word(name) for name in IDS}
    assert words == {name: CANNOT_DECIDE if name == "A13" else SUPPORTED for name in IDS}


def test_records_of_one_case_that_contradict_each_other_decide_nothing():
    mixed = Note().broken(2).broken(1, "other words", hash_seed=1)
    ruling = mixed.ruling("A1")
    assert ruling.word == CANNOT_DECIDE
    assert "backward raises CheckpointError, different metadata (2 records of one case)" in ruling.reason
    assert "does not raise CheckpointError with different metadata (one record of one case)" in ruling.reason
    assert f"records contradict each other in: {NOTE} {BROKEN}" in ruling.reason


def test_each_setting_is_decided_by_itself():
    """One that shows the contrary is not lost among those that agree."""
    here, there = Note().broken(), Note(version="2.6.0").broken(ended=samples.outcome("finished"))
    ruling = here.ruling("A1", there)
    assert ruling.word == SUPPORTED_IN_PART
    assert "With torch 2.13.0+cpu, supported: backward raises CheckpointError" in ruling.reason
    assert "With torch 2.6.0, refuted: backward does not raise" in ruling.reason
    alike = here.ruling("A1", Note(version="2.6.0").broken())
    assert alike.word == SUPPORTED
    assert alike.reason.startswith("in each of 2 settings: backward raises CheckpointError")
    alone = here.ruling("A1", Note(version="2.6.0").default())
    assert alone == here.ruling("A1"), "a setting without a record of it changes nothing"


@pytest.mark.parametrize("name", IDS)
def test_the_order_of_replays_of_other_cases_decides_nothing(name):
    note = whole()
    before = note.ruling(name)
    note.made.sort(key=lambda replay: (replay.spec.question.case, replay.spec.setting.repeat))
    assert note.word(name) == before.word


# One by one.


def test_a1_needs_the_error_its_phase_and_its_words():
    assert Note().broken().word("A1") == SUPPORTED
    for other in (
        {"message": "other words"},
        {"kind": "RuntimeError"},
        {"ended": replace(samples.outcome("raised", MESSAGE), type=ERROR, phase="forward")},
        {"ended": samples.outcome("finished")},
        {"ended": samples.outcome("died")},
    ):
        assert Note().broken(**other).word("A1") == REFUTED


def test_a1_is_about_the_plain_pass():
    """An instrument may change how a case ends."""
    note = Note()
    plain = note.bench.record(note.spec(BROKEN), ended=samples.outcome("finished"))
    ended = replace(samples.outcome("raised", MESSAGE), type=ERROR)
    note.made.append(note.bench.replay(plain, note.bench.record(note.spec(BROKEN, pass_="profiled"), ended=ended)))
    assert note.word("A1") == REFUTED


def test_a2_needs_both_shapes_of_one_tensor():
    assert Note().broken().word("A2") == SUPPORTED
    swapped = MESSAGE.replace("saved", "x").replace("recomputed", "saved").replace("x metadata", "recomputed metadata")
    apart = MESSAGE.replace("torch.Size([2, 4, 8])", "torch.Size([2, 8])")
    for message in (swapped, apart, "different metadata", None):
        assert Note().broken(message=message).word("A2") == REFUTED


@pytest.mark.parametrize(("name", "case"), list(zip(("A3", "A4", "A5"), REPAIRS, strict=True)))
def test_a3_to_a5_need_the_repair_to_finish(name, case):
    failed = samples.outcome("raised", "no")
    assert Note().repairs(names=[case]).word(name) == SUPPORTED
    assert Note().repairs(names=[case], ended=failed).word(name) == REFUTED
    other = next(repair for repair in REPAIRS if repair != case)
    assert Note().repairs(names=[other]).word(name) == NOT_TESTED


def test_a3_needs_gradients():
    note = Note()
    note.add(note.spec(REPAIRS[0]), *[note.bench.absent("gradient", name) for name in NAMES])
    assert note.word("A3") == REFUTED


def test_a6_is_against_the_default_reference():
    assert Note().default().word("A6") == SUPPORTED
    assert Note().default((4096.0, 2.5)).word("A6") == REFUTED


def test_a6_rests_on_its_reference_too():
    note = Note().default()
    found = {digest(replay.plain.text()) for replay in note.made if replay.spec.question.dtype == "float32"}
    assert set(note.ruling("A6").digests) == found


def test_a7_needs_every_bit_of_output_and_gradients():
    assert Note().repairs().word("A7") == SUPPORTED
    assert Note().repairs(numbers=(1.0, 2.0 + 2**-22)).word("A7") == REFUTED
    note = Note().repairs(names=REPAIRS[:2])
    marks = {"reference": note.made[0].spec.question.case_digest()}
    note.add(note.spec(REPAIRS[2], **marks), *note.tensors()[:-1])
    assert note.word("A7") == SUPPORTED_IN_PART, "a gradient that is missing is no gradient that is equal"


def test_a7_cannot_rest_on_a_reference_that_has_not_run():
    note = Note()
    for name in REPAIRS:
        note.add(note.spec(name), *note.tensors())
    assert note.word("A7") == CANNOT_DECIDE
    assert "the reference has not finished" in note.ruling("A7").reason


def test_a7_is_about_all_three_repairs():
    """The claim says A3 to A5; of one that was not run nothing is known."""
    ruling = Note().repairs(names=REPAIRS[:1]).ruling("A7")
    assert ruling.word == CANNOT_DECIDE
    assert f"not run: {NOTE} {REPAIRS[1]}; not run: {NOTE} {REPAIRS[2]}" in ruling.reason


def test_a8_needs_both_operators_in_their_runs():
    assert Note().broken().word("A8") == SUPPORTED
    assert Note().broken(forward=FLASH, recomputation=MATH).word("A8") == REFUTED
    assert Note().broken(recomputation=MATH).word("A8") == REFUTED
    assert Note().broken(1).broken(1, forward=FLASH, seed=2).word("A8") == SUPPORTED_IN_PART, "two cases"


def test_a8_rests_on_profiled_passes_only():
    note = Note().broken(2)
    assert set(note.ruling("A8").digests) == {digest(replay.records["profiled"].text()) for replay in note.made}
    note.made = [Replay({"plain": replay.plain}) for replay in note.made]
    assert note.word("A8") == NOT_TESTED


def test_a8_is_about_the_cpu():
    assert Note().broken(device="cuda").word("A8") == NOT_TESTED


def test_a9_needs_three_equal_replays_one_of_them_copied():
    assert Note().broken().word("A9") == SUPPORTED
    assert Note().broken(2).word("A9") == NOT_TESTED
    note = Note().broken()
    note.made = [
        note.made[0],
        note.made[1],
        note.bench.replay(
            *[
                replace(record, spec=replace(record.spec, setting=replace(record.spec.setting, sources="original")))
                for record in note.made[2].records.values()
            ]
        ),
    ]
    assert note.word("A9") == NOT_TESTED, "none from copied sources"


def test_a9_is_refuted_by_one_that_differs():
    note = Note().broken(2)
    asked = note.spec(BROKEN, repeat=2, sources="copied")
    note.add(asked, ended=samples.outcome("finished"), profiled={"forward": MATH, "recomputation": FLASH})
    assert note.word("A9") == REFUTED
    both = note.repairs(names=REPAIRS[:1])
    assert both.word("A9") == SUPPORTED_IN_PART
    assert "have equal evidence digests (3 records of one case)" in both.ruling("A9").reason
    assert "have not all equal evidence digests (6 records of one case)" in both.ruling("A9").reason


def test_a9_looks_at_the_digests_of_the_copied_sources():
    note = Note().broken()
    changed = {
        name: replace(
            record, observation=replace(record.observation, sources=(Source("policy.py", "0" * 64, kept=False),))
        )
        for name, record in note.made[2].records.items()
    }
    note.made[2] = Replay(changed)
    assert note.word("A9") == NOT_TESTED


def test_a9_is_about_fresh_processes():
    """The note's records are of fresh processes, and so says the reason."""
    assert Note().broken(isolation="forked").word("A9") == NOT_TESTED


def test_a9_does_not_mix_machines():
    """Three replays on three machines are not three on one."""
    notes = [Note(host=host).broken(3) for host in ("one", "two", "three")]
    for index, note in enumerate(notes):
        note.made = note.made[index : index + 1]
    assert notes[0].word("A9", *notes[1:]) == NOT_TESTED


def test_a10_needs_an_exception_and_says_nothing_of_gradients_that_no_record_of_it_can_hold():
    ruling = Note().broken().ruling("A10")
    assert (ruling.word, "gradient" in ruling.reason) == (SUPPORTED, False)
    assert Note().broken(ended=samples.outcome("finished")).word("A10") == REFUTED


def test_a10_names_the_silent_replays_beside_it():
    """A change of policy within rounding: the report keeps it apart from corruption."""
    note = Note().broken().silent().silent(dtype="bfloat16").silent(size="large")
    ruling = note.ruling("A10")
    assert ruling.word == SUPPORTED
    assert "use_reentrant=True" in ruling.reason
    assert "a change of policy within rounding, not corruption" in ruling.reason
    for where in ("float32, small", "bfloat16, small", "float32, large"):
        told = (
            f"{where}: the gradient of query differs most from MATH's, by up to 0.50 (against float64 it errs by 0.25, "
            "MATH's by "
        )
        assert told in ruling.reason
    beside = {
        digest(r.plain.text())
        for r in note.made
        if (r.spec.question.scenario, r.spec.question.case) == (SILENT, BROKEN)
    }
    assert len(beside) == 3
    assert beside <= set(ruling.digests)


def test_a10_without_silent_replays_says_nothing_of_them():
    assert "use_reentrant" not in Note().broken().ruling("A10").reason


def test_a10_does_not_hide_a_silent_replay_beyond_rounding():
    """That would be the silent corruption which the claim denies."""
    ruling = Note().broken().silent((4096.0, 900.0)).ruling("A10")
    assert ruling.word == SUPPORTED_IN_PART
    assert "it is more than rounding: float32, small: the gradient of query differs most from MATH's, by up to 900" in (
        ruling.reason
    )


def test_a10_sets_each_difference_beside_the_error_of_the_same_tensor():
    """The largest difference and the largest error may be two tensors'."""
    note = Note().broken()
    marks = note.references(SILENT, parameters={"size": "small"})
    asked = note.spec(BROKEN, SILENT, expectations=ROUNDED, parameters={"size": "small"}, **marks)
    bench = note.bench
    far, near = bench.tensor("gradient", "query", (4096.0, 2.25)), bench.tensor("gradient", "key", (4096.0, 2.5))
    note.add(asked, bench.tensor("output", "attended", (4096.0, 2.0)), far, near, note.tensors()[3])
    told = (
        "the gradient of key differs most from MATH's, by up to 0.50 (against float64 it errs by 0.25, MATH's by 0.25;"
    )
    assert told in note.ruling("A10").reason
    assert "the gradient of query" not in note.ruling("A10").reason


def test_a11_needs_the_attribute_error():
    def once(*kinds):
        note = Note()
        for repeat, kind in enumerate(kinds):
            ended = replace(samples.outcome("raised", "no"), type=kind) if kind else samples.outcome("finished")
            note.add(note.spec("one_context_given_twice", repeat=repeat), ended=ended)
        return note.word("A11")

    assert once("AttributeError", "AttributeError") == SUPPORTED
    assert once("AttributeError", None) == CANNOT_DECIDE
    assert once("RuntimeError", None) == REFUTED


def test_a12_quotes_the_page_and_the_digest_of_the_docstring():
    ruling = documented(Note(), True, True).ruling("A12")
    assert ruling.word == SUPPORTED
    assert "docs.pytorch.org/docs/stable/checkpoint.html" in ruling.reason
    assert "SHA-256 shashashasha" in ruling.reason
    assert documented(Note(), True, False).word("A12") == REFUTED


def test_a12_is_not_supported_by_a_process_that_saw_nothing():
    assert Note().once("documented", ended=samples.outcome("raised", "no docstring")).word("A12") == CANNOT_DECIDE


def test_a13_cannot_be_decided_while_all_agree():
    """That others may differ is not shown by any number of settings that do not."""
    ruling = Note().broken().ruling("A13")
    assert ruling.word == CANNOT_DECIDE
    assert "6 records of 1 setting agree: CheckpointError in backward (3)" in ruling.reason
    there = Note(version="2.6.0").broken()
    assert "12 records of 2 settings agree" in Note().broken().ruling("A13", there).reason


@pytest.mark.parametrize("how", [{"ended": samples.outcome("finished")}, {"recomputation": MATH}])
def test_a13_is_supported_by_one_setting_that_differs_in_its_ending_or_its_operators(how):
    ruling = Note().broken().ruling("A13", Note(host="two").broken(**how))
    assert ruling.word == SUPPORTED
    assert "12 records of 2 settings differ" in ruling.reason
    assert len(ruling.digests) == 12


def test_a13_looks_at_other_settings_too():
    """What was run elsewhere decides nothing else."""
    here, there = Note().broken(), Note(host="two").broken(ended=samples.outcome("finished"))
    evidence = gather(here.made, here.fetch(there), here.bench.machines, {"another": there.made})
    ruling = {claim.id: found for claim, found in decide(evidence)}["A13"]
    assert ruling.word == SUPPORTED
    assert "CheckpointError in backward (3)" in ruling.reason
    assert "finished (3)" in ruling.reason
    assert len(ruling.digests) == 12
    assert {claim.id: found for claim, found in decide(evidence)}["A1"].word == SUPPORTED


@pytest.mark.parametrize("name", ["A6", "A7"])
def test_each_machine_is_judged_against_its_own_reference(name):
    """Of all sweeps together, as `claims --all` has them: machines round differently, and each agrees with itself."""
    here, there = Note().repairs().default(), Note(host="two", last=2**-20).repairs().default()
    assert here.word(name) == there.word(name) == SUPPORTED
    assert here.word(name, there) == SUPPORTED


# From the command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder whose archive holds two sweeps of the note, the second by another machine."""
    made = tmp_path_factory.mktemp("lab")
    with Archive.open(f"sqlite:///{made}/outputs/archive.db", made / "outputs/blobs") as archive:
        for host, note in (("a", whole()), ("b", Note(host="two").broken(2))):
            records = [record for replay in note.made for _, record in sorted(replay.records.items())]
            sweep = archive.begin_sweep([record.spec for record in records], host * 64)
            for record in records:
                archive.add_text(record.text(), note.bench.blobs.get, sweep.id)
    return made


def reports(folder, *arguments, status=0):
    ended = forked("reports", folder, *arguments)
    assert ended.returncode == status, ended
    return ended.stdout


def swept(folder):
    with Archive.open(f"sqlite:///{folder}/outputs/archive.db", folder / "outputs/blobs", create=False) as archive:
        return {
            sweep.id: {digest(record.text()) for record in archive.records(sweep=sweep.id)}
            for sweep in archive.sweeps()
        }


def test_claims_are_printed_with_their_rulings_and_records(folder):
    first, second = swept(folder)
    rows = json.loads(reports(folder, "claims", "--json", "--sweep", first))
    advice = [one.id for one in ADVICE]
    assert [row["id"] for row in rows] == [*EVERY, *advice]
    assert all(set(row) == {"id", "note", "kind", "claim", "ruling", "why", "digests"} for row in rows)
    assert {row["ruling"] for row in rows[:12]} == {SUPPORTED}
    assert rows[12]["ruling"] == CANNOT_DECIDE
    assert [row["kind"] for row in rows] == ["claim"] * len(EVERY) + ["advice"] * len(advice)
    for row, claim in zip(rows, CLAIMS, strict=False):
        assert (row["claim"], row["note"]) == (claim.text, claim.note.name)
    for row in rows:
        assert set(row["digests"]) <= swept(folder)[first]
        assert bool(row["digests"]) == row["id"].startswith("A"), "of the other note nothing has run"
    assert {row["ruling"] for row in rows if row["id"].startswith("B")} == {NOT_TESTED}
    assert second != first


def test_claims_are_those_of_the_latest_sweep_or_of_all(folder):
    latest = json.loads(reports(folder, "claims", "--json"))
    assert [row["ruling"] for row in latest if row["id"] in ("A1", "A3")] == [SUPPORTED, NOT_TESTED]
    every = {row["id"]: row for row in json.loads(reports(folder, "claims", "--json", "--all"))}
    assert "10 records of 2 settings agree" in every["A13"]["why"]
    assert every["A3"]["ruling"] == SUPPORTED


def test_claims_as_text_stand_under_their_note_with_their_ruling_reason_and_records(folder):
    text = reports(folder, "claims", "--sweep", next(iter(swept(folder))))
    lines = text.splitlines()
    heads = [line for line in lines if line in (CHECKPOINT_NOTE.name, COMPILE_NOTE.name)]
    assert heads == [CHECKPOINT_NOTE.name, COMPILE_NOTE.name]
    told = " ".join(text.split())
    for note in (CHECKPOINT_NOTE, COMPILE_NOTE):
        assert " ".join(note.about.split()) in told
    every = decide(whole().evidence())
    for claim, ruling in every[:13]:
        assert f"{claim.id} {claim.text} {ruling.word}: {ruling.reason}" in told
        assert f"records: {', '.join(name[:12] for name in ruling.digests)}" in told
    assert "What to do instead" in told


def test_claims_of_no_archive_are_refused(tmp_path):
    assert reports(tmp_path, "claims", status=2) == ""


def test_records_from_the_archive_decide_as_those_in_memory(folder):
    """Nothing that a ruling rests on is lost on the way."""
    note = whole()
    with Archive.open(f"sqlite:///{folder}/outputs/archive.db", folder / "outputs/blobs", create=False) as archive:
        made = replays(archive.records(sweep=next(iter(swept(folder)))))
        found = decide(gather(made, archive.fetch, note.bench.machines))
    assert [(c.id, r.word, r.reason) for c, r in found] == [
        (c.id, r.word, r.reason) for c, r in decide(note.evidence())
    ]
