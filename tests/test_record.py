"""A record's text is canonical, comes back exactly, and says of its evidence only what a replay must repeat."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace

import pytest
import rfc8785
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.core.canonical_json import RecordError, canonical, digest, number, parse, printable_text
from experiments.core.environment import machine_identity, recorded_variables
from experiments.core.expectations import expectation_to_json
from experiments.core.observation import Observed, Operator, Output, StateChange
from experiments.core.outcome import Outcome
from experiments.core.record import Record
from experiments.core.replay import Replay, replays
from experiments.core.sampling import SAMPLES, sample_positions
from experiments.core.schema_history import SCHEMA
from experiments.core.spec import Spec, case_label, family, spec_of_attempt
from experiments.scenario import varies
from store import index

few = settings(max_examples=100, deadline=None, derandomize=True, database=None)

# What both the RFC's library and our writer carry as it is: see `number` for the rest.
text = st.text(st.characters(exclude_categories=("Cs",)))
exact = st.integers(-(2**53) + 1, 2**53 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda value: value != 0 or math.copysign(1, value) > 0
)


def nested(numbers):
    return st.recursive(
        st.none() | st.booleans() | exact | numbers | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=10,
    )


values = nested(floats)


# Canonical JSON.


@few
@given(values)
def test_canonical_text_is_what_rfc_8785_asks_for(value):
    assert canonical(value).encode() == rfc8785.dumps(value)


@few
@given(st.integers(0, 2**64 - 1))
def test_every_finite_float_is_written_as_ecmascript_writes_it(bits):
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    if math.isfinite(value) and bits != 1 << 63:
        assert canonical(value).encode() == rfc8785.dumps(value)
        assert float(canonical(value)) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1e-7, "1e-7"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-7"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (5e-324, "5e-324"),
        (2.2250738585072011e-308, "2.225073858507201e-308"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (100.0, "100"),
        (-0.5, "-0.5"),
        (0.0, "0"),
        (333333333.3333333, "333333333.3333333"),
    ],
)
def test_numbers_at_the_borders_of_notation(value, shown):
    assert canonical(value) == shown
    assert rfc8785.dumps(value).decode() == shown


def test_keys_are_ordered_by_utf_16_units():
    """A character beyond the basic plane sorts before U+FB33, though its code point is larger."""
    assert canonical({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'


def test_equal_mappings_have_equal_text_whatever_their_order():
    assert canonical({"b": [1, (2,)], "a": None}) == canonical({"a": None, "b": (1, [2])}) == '{"a":null,"b":[1,[2]]}'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, '"nan"'),
        (-math.nan, '"nan"'),
        (math.inf, '"inf"'),
        (-math.inf, '"-inf"'),
        (-0.0, '"-0.0"'),
        (2**53, '"9007199254740992"'),
        (-(2**53), '"-9007199254740992"'),
        (2**53 - 1, "9007199254740991"),
        (True, "true"),
    ],
)
def test_what_json_cannot_carry_is_a_string(value, shown):
    """SQLite turns NaN into NULL and loses the sign of -0.0; JavaScript loses integers from 2**53."""
    assert canonical([value]) == f"[{shown}]"


def test_a_lone_surrogate_becomes_its_escape():
    assert canonical("a\ud800b") == '"a\\\\ud800b"'
    assert printable_text("a\ud800b") == "a\\ud800b"
    assert canonical({"\udfff": 1}).encode("utf-8")


def test_keys_that_print_alike_are_refused():
    """The text would have a key twice, which `parse` refuses: it could be stored and never read."""
    with pytest.raises(RecordError):
        canonical({"\ud800": 1, "\\ud800": 2})


@pytest.mark.parametrize("value", [{1: 2}, {"a": {None: 1}}, b"bytes", {1, 2}, object()])
def test_what_is_not_json_is_refused(value):
    with pytest.raises(RecordError):
        canonical(value)


def test_depth_has_an_end_in_both_directions():
    def nested(levels):
        value: list = []
        for _ in range(levels):
            value = [value]
        return value

    assert parse(canonical(nested(64))) == nested(64)
    with pytest.raises(RecordError, match="deeper"):
        canonical(nested(65))
    with pytest.raises(RecordError, match="too deep"):
        parse("[" * 200_000 + "]" * 200_000)


@pytest.mark.parametrize(
    "content",
    ['{"a":1,"a":2}', '[{"b":{"a":1,"a":1}}]', "[NaN]", "[Infinity]", "[-Infinity]", "", "{", "[1] 2", "[01]"],
)
def test_what_has_no_single_meaning_is_not_read(content):
    with pytest.raises(RecordError):
        parse(content)


@few
@given(values)
def test_canonical_text_is_values_and_written_the_same(value):
    assert canonical(parse(canonical(value))) == canonical(value)


@pytest.mark.parametrize("value", [2.0**53, -(2.0**60), 1e20])
def test_a_large_whole_float_is_values_and_written_the_same(value):
    """A case that observes 1e17 leaves a record that its own evidence digest refuses."""
    assert canonical(parse(canonical(value))) == canonical(value)
    record = samples.record()
    seen = replace(record.observation, observed=(Observed("loss", value, "evidence", None),))
    Record.from_text(replace(record, observation=seen).text())


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 3, 5e-324])
def test_number_undoes_canonical(value):
    back = number(parse(canonical(value)))
    assert struct.pack("<d", back) == struct.pack("<d", float(value))


@pytest.mark.parametrize("value", ["1", "NaN", "infinity", "", " nan", True, False, None, [1.0], {}])
def test_number_takes_nothing_else(value):
    with pytest.raises(RecordError):
        number(value)


# The record's text.


counts = st.integers(0, 2**53 - 1)
optional = st.none() | counts
any_float = st.floats()


@st.composite
def records(draw):
    """Records with whatever values their fields may take."""
    base = samples.record(
        seed=draw(st.integers(0, 9)),
        kind=draw(st.sampled_from(["finished", "raised", "died"])),
        message=draw(st.none() | st.text()),
        observed=draw(st.booleans()),
        parameters=draw(st.dictionaries(text, st.none() | st.booleans() | exact | text, max_size=3)),
        timeout=draw(any_float),
        memory=draw(optional),
    )
    ending = replace(base.ending, duration=draw(any_float), exit_code=draw(st.none() | st.integers(-64, 255)))
    if draw(st.booleans()):
        ending = replace(ending, unreadable=Output("0" * 64, draw(counts), draw(counts)))
    seen = base.observation
    if seen is not None:
        tensors = tuple(replace(t, norm=draw(any_float), largest=draw(any_float)) for t in seen.tensors)
        seen = replace(
            seen,
            tensors=tensors if draw(st.booleans()) else (),
            operators=draw(st.none() | st.just({"forward": (Operator(1, 2, "aten::add", ((), (2, 3))),), "again": ()})),
            observed=(Observed(draw(st.text()), draw(values), "measurement", draw(st.none() | any_float)),),
            state=(StateChange("switch", draw(values), math.nan),),
            durations={"forward": draw(any_float)},
        )
    return replace(base, ending=ending, observation=seen)


@few
@given(records())
def test_a_record_comes_back_with_the_same_text(record):
    read = Record.from_text(record.text())
    assert read.text() == record.text()
    assert read.evidence_digest() == record.evidence_digest()


def test_a_record_comes_back_as_the_same_values():
    record = samples.record(kind="raised", message="first\n\nsecond", parameters={"size": "small", "count": 3})
    assert Record.from_text(record.text()) == record
    assert Spec.from_json(record.spec.to_json()) == record.spec


def test_an_unusual_number_of_a_field_comes_back_as_that_number():
    record = samples.record(timeout=math.inf)
    assert Record.from_text(record.text()).spec.setting.timeout == math.inf


def test_a_large_integer_of_a_field_comes_back_as_an_integer():
    """A worker that is asked for seed=9007199254740993 gets the text "9007199254740993"."""
    asked = samples.spec(seed=2**53 + 1)
    assert Spec.from_json(parse(canonical(asked.to_json()))) == asked


def changed(record, *path, value=None, remove=False):
    """The record's text with one place changed."""
    data = json.loads(record.text())
    place = data
    for name in path[:-1]:
        place = place[name]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize("schema", [SCHEMA + 1, 0, -1, "1", 1.5, True, None])
def test_another_schema_is_refused_in_one_sentence(schema):
    with pytest.raises(RecordError) as caught:
        Record.from_text(changed(samples.record(), "schema", value=schema))
    message = str(caught.value)
    assert f"schema {schema!r}" in message
    assert f"reads 1 to {SCHEMA}" in message
    assert "\n" not in message


PLACES = [
    (),
    ("spec",),
    ("spec", "question"),
    ("spec", "setting"),
    ("spec", "mark"),
    ("outcome",),
    ("observation",),
    ("observation", "tensors", 0),
    ("observation", "observed", 0),
    ("observation", "memory", 0),
    ("observation", "sources", 0),
    ("ending",),
    ("ending", "stdout"),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "/".join(map(str, place)) or "record")
def test_a_field_that_is_missing_or_unknown_is_refused(place):
    """No field has a default: what is not there was not seen, and what is unknown could change the meaning."""
    record = samples.record()
    data = json.loads(record.text())
    for name in place:
        data = data[name]
    for name in data:
        with pytest.raises(RecordError):
            Record.from_text(changed(record, *place, name, remove=True))
    with pytest.raises(RecordError, match="planted"):
        Record.from_text(changed(record, *place, "planted", value=1))


@pytest.mark.parametrize("content", ["[]", "3", "null", '"text"', "{}", "nothing"])
def test_what_is_no_record_is_refused(content):
    with pytest.raises(RecordError):
        Record.from_text(content)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("outcome", "kind"), "exploded"),
        (("outcome", "kind"), None),
        (("outcome",), 3),
        (("spec",), []),
        (("observation", "tensors"), 3),
        (("observation", "operators"), {"forward": [[0, 0, "aten::mul"]]}),
        (("observation", "durations"), {"forward": "soon"}),
        (("ending", "duration"), "1"),
        (("ending", "stdout"), None),
        (("spec", "setting", "timeout"), True),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(path, value):
    with pytest.raises(RecordError):
        Record.from_text(changed(samples.record(), *path, value=value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "mark", "expectations"), [5]),
        (("ending", "duration"), 10**400),
        (("outcome", "message"), 5),
    ],
    ids=["expectations", "duration", "message"],
)
def test_a_field_that_only_evidence_looks_at_is_refused_too(path, value):
    """`python -m store check` catches RecordError: any other would end it at the first such record."""
    with pytest.raises(RecordError):
        Record.from_text(changed(samples.record(kind="raised", message="text"), *path, value=value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("evidence_digest",), "0" * 64),
        (("evidence_digest",), None),
        (("observation", "tensors", 0, "digest"), "0" * 64),
        (("observation", "observed", 0, "value"), 3),
        (("outcome", "phase"), "forward"),
    ],
)
def test_evidence_that_does_not_match_its_digest_is_refused(path, value):
    with pytest.raises(RecordError, match="evidence digest is"):
        Record.from_text(changed(samples.record(), *path, value=value))


def test_a_fingerprint_that_does_not_match_is_refused():
    record = samples.record(kind="raised", message="text")
    with pytest.raises(RecordError):
        Record.from_text(changed(record, "outcome", "fingerprint", value="another"))


# The error's fingerprint.


def fingerprint(message, **changes):
    ended = replace(samples.outcome("raised", message), **changes)
    return ended.fingerprint()


HEAD = (
    "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the "
    "forward pass.\ntensor at position 0:\nsaved metadata: {'shape': torch.Size([2, 4, 8]), 'dtype': torch.float32, "
    "'device': device(type='cpu')}\nrecomputed metadata: {'shape': torch.Size([1, 2, 8, 4]), 'dtype': torch.float32, "
    "'device': device(type='cpu')}\n."
)
ADVICE = {
    "2.6": "",
    "2.11": "\n\nTip: To see a more detailed error message, either pass `debug=True` to\n`torch.utils.checkpoint`.",
    "2.13": "\n\nTip: To see a more detailed error message, pass `debug=True`.\n\nIf this error occurs under "
    "torch.compile with automatic_dynamic_shapes enabled,\nit may be because of another graph.\n",
    "blank line of spaces": "\n  \t\nTip: something else",
}


def test_advice_after_the_first_blank_line_is_not_part_of_the_error():
    """Between torch 2.6, 2.11 and 2.13 the message differs in its advice only."""
    assert len({fingerprint(HEAD + advice) for advice in ADVICE.values()}) == 1
    assert fingerprint(HEAD).endswith("'device': device(type='cpu')}\n.")


def test_shapes_and_byte_counts_are_part_of_the_error():
    assert "torch.Size([2, 4, 8])" in fingerprint(HEAD)
    assert fingerprint(HEAD) != fingerprint(HEAD.replace("[2, 4, 8]", "[2, 8, 4]"))
    wanted = "DefaultCPUAllocator: you tried to allocate 343597383680 bytes. Error code 12"
    assert "343597383680 bytes" in fingerprint(wanted)
    assert fingerprint(wanted) != fingerprint(wanted.replace("343597383680", "319975063552"))


def test_type_and_phase_are_part_of_the_error():
    assert fingerprint("text").startswith("RuntimeError in backward: text")
    assert len({fingerprint("t"), fingerprint("t", type="ValueError"), fingerprint("t", phase="forward")}) == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("object at 0x7f3ab2c0", "object at 0x55DEADBEEF"),
        ('File "/home/a/x.py", line 3, in f', 'File "/srv/other place/lab/x.py", line 47, in f'),
        ("at /build/aten/src/Sum.cpp:94 in", "at /pytorch/aten/src/Other/Sum.cpp:1024 in"),
        (r"at C:\Users\Jane Doe\x.py:12 in", "at /opt/x.py:3 in"),
        (r"at D:\lab\torch\lib\c10.dll in", r"at C:\Program Files\torch\lib\torch_cpu.dll in"),
        ("loading /usr/lib/libgomp.so failed", "loading /opt/my venv/lib/libgomp.so failed"),
        ("killed pid 17", "killed pid 4093"),
        ("killed pid=17", "killed pid=4093"),
        ("in process 17", "in process 4093"),
        ("on line 7", "on line 12"),
    ],
)
def test_accidents_of_a_run_are_not_part_of_the_error(first, second):
    assert fingerprint(first) == fingerprint(second)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("No such file: '/home/jane/data.bin'", "No such file: '/home/joe/data.bin'", True),
        ("cannot write /tmp/torchinductor_jane/ab/kernel", "cannot write /tmp/torchinductor_joe/cd/kernel", True),
        ("Process 17 has 1 GiB in use", "Process 4093 has 1 GiB in use", True),
        ("copied /a/b.py 10 bytes to /c/d.py", "copied /a/b.py 12 bytes to /c/d.py", False),
    ],
    ids=["another extension", "no extension", "capital", "between two paths"],
)
def test_every_path_and_process_is_an_accident_and_nothing_between_them(first, second, same):
    """A byte count between two paths must stay; the home folder of whoever ran it must not."""
    assert (fingerprint(first) == fingerprint(second)) is same


@few
@given(st.text(max_size=200), st.sampled_from(["\n\n", "\n \n", "\n\t\n"]), st.text(max_size=50))
def test_a_fingerprint_never_depends_on_what_follows_a_blank_line(head, gap, advice):
    """Whatever precedes: only the first paragraph counts."""
    kept = f"x{head.strip()}x"
    assert fingerprint(f"{kept}{gap}{advice}x") == fingerprint(kept)


@pytest.mark.parametrize("kind", ["finished", "timed_out", "out_of_memory", "died", "not_run"])
def test_only_an_exception_has_a_fingerprint(kind):
    assert Outcome(kind, None, None, (), None, None, "").fingerprint() is None


def test_an_exception_without_a_message_has_a_fingerprint():
    assert fingerprint(None) == fingerprint("") == "RuntimeError in backward: "


# Evidence.


def test_times_memory_and_host_are_not_evidence():
    first = samples.record()
    second = replace(
        first,
        ending=replace(
            first.ending, duration=99.0, started_at="2027-01-01T00:00:00.000000Z", stdout=Output("0" * 64, 1, 1)
        ),
        observation=replace(first.observation, memory=(), durations={}, machine="0" * 64, sources=()),
    )
    assert first.text() != second.text()
    assert first.evidence_digest() == second.evidence_digest()


def test_measurements_are_not_evidence():
    first = samples.record()
    seen = first.observation
    timed = replace(
        first, observation=replace(seen, observed=(*seen.observed, Observed("ms", 3.5, "measurement", 0.1)))
    )
    assert timed.evidence_digest() == first.evidence_digest()


@pytest.mark.parametrize(
    "change",
    [
        {"observed": (Observed("calls", 3, "evidence", None),)},
        {"state": (StateChange("sdpa.math", True, False),)},
        {"tensors": ()},
        {"operators": None},
        {"operators": {"forward": (Operator(0, 0, "aten::mul", ((16,), (1,))),)}},
    ],
)
def test_what_a_replay_must_repeat_is_evidence(change):
    first = samples.record()
    second = replace(first, observation=replace(first.observation, **change))
    assert first.evidence_digest() != second.evidence_digest()


def test_an_ending_without_an_observation_is_evidence_too():
    first = samples.record(kind="died", observed=False)
    assert first.evidence()["tensors"] is None
    assert first.evidence_digest() != samples.record(kind="timed_out", observed=False).evidence_digest()


def test_results_that_vary_by_nature_are_not_evidence():
    """Otherwise no two replays of a race could ever agree."""
    mark = (expectation_to_json(varies(at_least=0.1)),)
    first, second = (samples.record(seed=seed, expectations=mark) for seed in (1, 2))
    assert first.evidence_digest() == second.evidence_digest()
    assert samples.record(seed=1).evidence_digest() != samples.record(seed=2).evidence_digest()


def test_blobs_names_every_content_that_a_record_rests_on():
    record = samples.record()
    assert set(record.blobs()) == set(samples.contents(0))
    assert set(record.blobs().values()) == {"stdout", "stderr", "machine", "source", "tensor"}


def test_blobs_of_a_process_that_left_nothing_are_its_outputs():
    record = samples.record(kind="died", observed=False)
    assert set(record.blobs().values()) == {"stdout", "stderr"}
    broken = replace(record, ending=replace(record.ending, unreadable=Output("f" * 64, 3, 3)))
    assert broken.blobs()["f" * 64] == "unreadable"


def test_blobs_of_a_sampled_tensor_are_its_sample_and_sketch():
    """The digest of a large tensor names content that nobody keeps."""
    record = samples.record()
    large = replace(record.observation.tensors[0], whole=False, digest="a" * 64, samples="b" * 64, sketch="c" * 64)
    torch_file = replace(record.observation.sources[0], name="torch/a.py", digest="d" * 64, kept=False)
    blobs = replace(record, observation=replace(record.observation, tensors=(large,), sources=(torch_file,))).blobs()
    assert blobs["b" * 64] == blobs["c" * 64] == "tensor"
    assert not {"a" * 64, "d" * 64} & set(blobs)


# Identities.


def test_a_question_keeps_its_digest():
    """The identity that all machines share: if this changes, old records answer no new question."""
    question = samples.spec().question
    assert question.digest() == digest(
        '{"case":"chosen_inside","device":"cpu","dtype":"float32","input_dtype":"float32","parameters":{},'
        f'"pass":"plain","scenario":"checkpoint/policy","seed":1729,"source":"{question.source}","threads":1}}'
    )


def test_passes_share_a_case_and_attempts_share_a_replay():
    asked = samples.spec()
    profiled = samples.spec(pass_="profiled")
    assert asked.question.digest() != profiled.question.digest()
    assert asked.question.case_digest() == profiled.question.case_digest()
    assert asked.replay_digest() == profiled.replay_digest() == spec_of_attempt(asked, 3).replay_digest()
    assert asked.digest() != spec_of_attempt(asked, 3).digest()
    assert asked.replay_digest() != samples.spec(repeat=1).replay_digest()


def test_replays_keep_the_last_record_of_a_pass():
    first, second = samples.record(seed=1), samples.record(seed=2, attempt=1)
    other, profiled = samples.record(repeat=1), samples.record(pass_="profiled")
    made = replays([first, other, second, profiled])
    assert [dict(one.records) for one in made] == [{"plain": second, "profiled": profiled}, {"plain": other}]
    assert made[0].plain == second
    assert Replay({"profiled": profiled}).plain is None


def test_run_again_is_the_same_replay_with_other_content():
    first, again = (Replay({"plain": samples.record(started_at=f"202{year}-01-01T00:00:00Z")}) for year in (6, 7))
    assert first.digest() == again.digest()
    assert first.evidence_digest() == again.evidence_digest()
    assert first.content_digest() != again.content_digest()


@pytest.mark.parametrize(
    ("parameters", "dtype", "input_dtype", "label"),
    [
        ({}, "float32", "float32", "case"),
        ({"size": "small", "first": "MATH"}, "float32", "float32", "case[first=MATH,size=small]"),
        ({"first": "MATH"}, "bfloat16", "bfloat16", "case[dtype=bfloat16,first=MATH]"),
        ({}, "float64", "float32", "case[dtype=float64 of float32]"),
        ({}, "float32", "float16", "case[dtype=float32 of float16]"),
    ],
)
def test_a_label_names_case_and_variant(parameters, dtype, input_dtype, label):
    assert case_label("case", parameters, dtype, input_dtype) == label


def test_a_machine_is_its_host_processor_gpu_and_system():
    """Not torch, threads or switches: one box with two environments is one machine."""
    here = samples.facts()
    same = samples.facts(version="2.6.0", variables={"MKL_CBWR": "AVX2"})
    same["cpu"] = {**same["cpu"], "capability": "AVX2", "usable_cores": 2}
    assert machine_identity(here) == machine_identity(same)
    others = [samples.facts(host="two"), samples.facts(gpu={"name": "a GPU"}), samples.facts(system={"name": "Darwin"})]
    others.append({**here, "cpu": {**here["cpu"], "cores": 4}})
    assert len({machine_identity(facts) for facts in [here, *others]}) == 5


def test_variables_are_recorded_by_whole_name():
    """A name that only begins like one of the list could carry a secret."""
    caller = {"OMP_NUM_THREADS": "2", "OMP_NUM_THREADS_TOKEN": "x", "omp_num_threads": "3", "OMP_": "4", "MKL": "5"}
    assert recorded_variables({**caller, "AWS_SECRET_ACCESS_KEY": "x"}) == {"OMP_NUM_THREADS": "2"}


# Sample positions.


@few
@given(st.integers(0, 5_000_000))
def test_sample_positions_are_distinct_sorted_and_inside(elements):
    positions = sample_positions(elements)
    assert len(positions) == min(elements, SAMPLES)
    assert all(a < b for a, b in zip(positions, positions[1:], strict=False))
    assert not positions or (positions[0] >= 0 and positions[-1] < elements)


def test_a_small_tensor_is_looked_at_everywhere():
    assert sample_positions(0) == []
    assert sample_positions(SAMPLES) == list(range(SAMPLES))


@pytest.mark.parametrize(
    ("elements", "first", "all_of_them"),
    [
        (1025, [0, 1, 2, 3, 4, 5], "e2aafd4f4dc0133a"),
        (4096, [3, 5, 10, 13, 18, 22], "597e424765c528e4"),
        (10_000_019, [5875, 17754, 20921, 34245, 44754, 57161], "c836ded99855768a"),
    ],
)
def test_sample_positions_never_change(elements, first, all_of_them):
    """Two machines compare elements at the same places, also when years lie between them."""
    positions = sample_positions(elements)
    assert positions[:6] == first
    assert digest(canonical(positions))[:16] == all_of_them


def test_sample_positions_follow_no_grid():
    """Equal steps would see one column of a matrix and nothing else."""
    steps = {b - a for a, b in zip(sample_positions(2**20), sample_positions(2**20)[1:], strict=False)}
    assert len(steps) > 500


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "question", "case"), []),
        (("spec", "question", "threads"), True),
        (("spec", "question", "parameters"), ["a"]),
        (("spec", "setting", "variables"), {"MKL_CBWR": 1}),
        (("spec", "setting", "memory"), 1.5),
        (("spec", "setting", "environment"), None),
        (("spec", "mark", "expectations"), [1]),
        (("spec", "mark", "fork_safe"), 1),
        (("outcome", "bases"), [None]),
        (("outcome", "traceback"), {}),
        (("ending", "exit_code"), "0"),
        (("ending", "stdout", "written"), None),
        (("observation", "tensors", 0, "shape"), [-1]),
        (("observation", "tensors", 0, "shape"), [True]),
        (("observation", "tensors", 0, "whole"), "yes"),
        (("observation", "memory", 0, "peak"), "many"),
        (("observation", "operators", "forward", 0, 2), 5),
        (("observation", "operators", "forward", 0, 3), [[-4]]),
    ],
    ids=lambda value: "/".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_field_of_another_kind_is_refused(path, value):
    """Whoever reads records relies on their kinds, and a record may come from anybody."""
    data = json.loads(samples.record().text())
    place = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(RecordError, match=r"not|no integer"):
        Record.from_text(canonical(data))


@pytest.mark.parametrize(("scenario", "folder"), [("checkpoint/name", "checkpoint"), ("a/b/c", "a/b"), ("alone", "")])
def test_a_family_is_one_thing_in_the_index_and_in_mlflow(scenario, folder):
    """It was `a` in one and `a/b` in the other."""
    record = samples.record(asked=samples.spec(scenario=scenario))
    assert index.cell_values(record.text(), record)["family"] == family(scenario) == folder
