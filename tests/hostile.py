"""Bundles that somebody makes to do harm: sealed, with digests that are right, out of genuine records that are changed.

One seed, one bundle, the same each time. Nothing here is as a run would leave it, but for the records that it starts
from, which are of a published bundle.
"""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from random import Random
from typing import Any, Callable, Sequence

from experiments.bundle import layout, writer
from experiments.core import bounds, canonical_json
from experiments.core import record as record_module
from experiments.core.canonical_json import canonical, digest, parse
from experiments.core.record import Record
from experiments.core.sweep import BundledSweep, plan_text
from store import bundles

PUBLISHED = Path(__file__).parents[1] / "store" / "published"
SOURCE = "linux-x86_64-avx2-torch-2.13.0-cpu-81c465ff-one_thread.zip"
SCENARIOS = ("checkpoint/grouped_heads_lose_the_attention_policy", "checkpoint/reentrant_loses_second_derivatives")
"""One whose cases raise and recompute, and one with gradients."""
BEGAN = "2026-05-05T05:05:05.000005Z"

TEXTS = (
    "",
    " ",
    "\n",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07\x1b[2J\x1b[H",
    "\x9b31mred",
    "\x08\x08\x08proven",
    "a\rb",
    "\u202egnp.exe\u2066",
    "\u200b\u200d\ufeff",
    "\u2028\u2029\x85\x0b\x0c",
    "\ud800",
    "\\ud800",
    "\udfff\udbff",
    "\U0010ffff\ufffe\U000e0041",
    "\u0430ten::mm",
    "Å" + "́" * 60,
    "\u0661\u0662\u0663",
    "²",
    "nan",
    "inf",
    "-inf",
    "-0.0",
    "1e999",
    "9" * 4409,
    "9" * 39,
    "-1",
    "0x10",
    "1_000",
    "True",
    "null",
    "none",
    "here",
    "archive",
    "flip-threads",
    "control-threads",
    "$(touch owned)",
    "`touch owned`",
    "'; touch owned; '",
    '"; touch owned #',
    "%s%n{0}{x.__class__}",
    "{by_at_least}",
    "../../etc/passwd",
    "a/" * 400,
    "C:\\con",
    "<script>alert(1)</script>",
    "</summary></details>",
    "| a | b |\n|---|---|",
    "```\n# heading",
    "[x](javascript:alert(1))",
    "]]>&#0;&lt;",
    "[" * 200,
    "x" * 999,
    "x" * 1001,
    "x" * 131072,
    "\n" * 5000,
    "a b " * 20000,
    "0" * 64,
    "CheckpointError",
    "float64",
    "bfloat16",
    "complex128",
    "quint8",
    "finished",
    "not_run",
    "not_observed",
    "timed_out",
    "9999-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00Z",
    "2026-02-30T00:00:00Z",
    "2026-01-01T00:00:00+25:00",
)
NUMBERS = (
    *(0, 1, -1, 2, 63, 64, 65, 255, 1024, 1025, 2**31 - 1, 2**31, 2**32, 2**53 - 1, -(2**53) + 1),
    *(str(2**53), str(2**63), str(-(2**63)), "9" * 40, "9" * 41, "9" * 400),
    *(0.5, -0.5, 1e-320, 1e16, 1e22, 1e200, 1e308, -1e308, 1.7976931348623157e308),
    *("nan", "inf", "-inf", "-0.0"),
)
OTHERS = (None, True, False, [], {}, [[]], [None], {"a": {}}, {"": ""}, {"kind": "varies"}, {"kind": "agrees"})
FLOATS = (0.0, -0.0, 1.0, 1e-45, 1e30, 3e38, 1e200, 1.7e308, float("inf"), float("-inf"), float("nan"))

Way = tuple[Any, ...]
Change = Callable[[Random, Any], Any]


class Home:
    """Genuine records of one scenario, and what they rest on."""

    def __init__(self, scenario: str = SCENARIOS[0]) -> None:
        with bundles.read_bundle(PUBLISHED / SOURCE, [scenario]) as found:
            self.records: tuple[Record, ...] = found.records
            names = {name for one in found.records for _, name in layout.required_members(one).values()}
            self.contents = {name: content for name in names for content in [found.fetch(name)] if content is not None}


def made(home: Home, seed: int) -> dict[str, bytes]:
    """The members of the bundle of this seed."""
    random = Random(seed)
    extra = dict(home.contents)
    few = random.random() < 0.5
    chosen = random.sample(home.records, random.randint(1, 3)) if few else list(home.records)
    document = _facts(random, home, chosen[0], extra)
    environment = random.choice(("default", "one_thread", "there", *TEXTS[:30])) if random.random() < 0.3 else ""
    changed = random.randint(0, 2)
    made: list[Record | str] = []
    for record in chosen:
        data = json.loads(record.text())
        if data["observation"] is not None:
            data["observation"]["machine"] = document
            if random.random() < 0.4:
                _other_numbers(random, data["observation"]["tensors"], extra)
        if environment:
            data["spec"]["setting"]["environment"] = environment
        made.append(_changed(random, data, changed if few else min(changed, 1)))
    return members(made, extra, random.choice((1, 2, 2**31 - 1)) if random.random() < 0.7 else None)


def _changed(random: Random, data: Any, count: int) -> Record | str:
    """The record changed at so many places, mostly so that it is still one: what is none is stopped at the door."""
    for _ in range(random.choice((1, 6, 6, 6, 6))):
        other = copy.deepcopy(data)
        for _ in range(count):
            _change(random, other)
        made = sealed(other)
        if isinstance(made, Record) and _is_allowed(made):
            break
    return made


def _is_allowed(record: Record) -> bool:
    try:
        bounds.refuse_excess(record)
    except canonical_json.RecordError:
        return False
    return True


def write(home: Home, seed: int, path: Path) -> None:
    writer.write(path, made(home, seed))


def _facts(random: Random, home: Home, record: Record, extra: dict[str, bytes]) -> str:
    """Facts of a machine that is not ours, often with a change."""
    seen = record.observation or next(one.observation for one in home.records if one.observation)
    facts = json.loads(home.contents[seen.machine])
    facts["host"] = random.choice((facts["host"], "c0ffeec0ffee", "c0ffeec0ffee", "b0bab0bab0ba"))
    for _ in range(random.randint(0, 3)):
        _change(random, facts)
    if random.random() < 0.2:
        facts[random.choice(TEXTS)] = random.choice(TEXTS)
    if random.random() < 0.15:
        facts.setdefault("switches", {})
        if isinstance(facts["switches"], dict):
            facts["switches"]["threads"] = random.choice((*NUMBERS, *TEXTS))
    if random.random() < 0.1:
        facts["variables"] = {random.choice(("MKL_CBWR", "OMP_NUM_THREADS", *TEXTS)): random.choice(TEXTS)}
    # As anybody's program writes JSON, lone surrogates and all.
    content = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    if random.random() < 0.05:
        content = random.choice((b"", b"[]", b"null", b"{", b'"text"', b"[" * 500 + b"]" * 500, b'{"a":1e400}'))
    extra[digest(content)] = content
    return digest(content)


def _other_numbers(random: Random, tensors: Sequence[Any], extra: dict[str, bytes]) -> None:
    """Other elements, sketches and samples, of the right length or of another."""
    for tensor in tensors:
        if tensor["role"] == "input" or not tensor["digest"] or random.random() < 0.5:
            continue
        codes = {"float32": "f", "float64": "d"}
        code, count = codes.get(tensor["dtype"], "B"), 1
        for size in tensor["shape"]:
            count *= size
        fitting = [one for one in FLOATS if code == "d" or not 3e38 < abs(one) < float("inf")]
        if code == "B":
            content = random.randbytes(count)
        else:
            content = struct.pack(f"<{count}{code}", *random.choices(fitting, k=count))
        content = random.choice((*[content] * 6, content[:-1], content + b"\0", bytes(len(content))))
        extra[digest(content)] = content
        tensor["digest"] = digest(content)
        tensor["whole"] = random.random() < 0.8
        if not tensor["whole"]:
            sketch = struct.pack("<1024d", *[random.choice(FLOATS)] * 1024) if random.random() < 0.9 else bytes(8)
            extra[digest(sketch)] = sketch
            tensor["sketch"], tensor["samples"] = digest(sketch), digest(content)


# Changes of one value.


def _change(random: Random, data: Any) -> None:
    """Change a value somewhere within."""
    ways = [way for way in _ways(data) if way]
    if not ways:
        return
    # The lists of operators have most of the values, and of one kind.
    others = [way for way in ways if "operators" not in way] if random.random() < 0.8 else []
    way = random.choice(others or ways)
    for key in way[:-1]:
        data = data[key]
    value = data[way[-1]]
    data[way[-1]] = random.choice(_CHANGES)(random, value)


def _ways(value: Any, way: Way = ()) -> list[Way]:
    """Where every value within is; of a long list some."""
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = [(at, value[at]) for at in {0, len(value) // 2, len(value) - 1} if 0 <= at < len(value)]
    else:
        inside = []
    return [way, *(one for key, part in inside for one in _ways(part, (*way, key)))]


def _of_its_kind(random: Random, value: Any) -> Any:
    if isinstance(value, str):
        return random.choice(TEXTS)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return random.choice(NUMBERS)
    if isinstance(value, list):
        return _longer(random, value)
    if isinstance(value, dict):
        return _with_another_key(random, value)
    return random.choice((*OTHERS[:3], *TEXTS, *NUMBERS))


def _of_any_kind(random: Random, _: Any) -> Any:
    return copy.deepcopy(random.choice((*TEXTS, *NUMBERS, *OTHERS)))


def _longer(random: Random, value: Any) -> Any:
    if not isinstance(value, list):
        return value * 30 if isinstance(value, str) else value
    if not value:
        return random.choice(([1], ["a"], [[]], [{}], ["a"] * 1001))
    times = random.choice((0, 2, 2, 30, 65, 1001))
    return copy.deepcopy((value * times)[: 25_000 if random.random() < 0.1 else 3000])


def _with_another_key(random: Random, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    made = dict(value)
    if made and random.random() < 0.4:
        made[random.choice(TEXTS)] = made.pop(random.choice(sorted(made)))
    elif random.random() < 0.3:
        made.update({f"k{number}": number for number in range(random.choice((10, 1001)))})
    else:
        made[random.choice(TEXTS)] = random.choice((*TEXTS, *NUMBERS))
    return made


def _nested(random: Random, value: Any) -> Any:
    for _ in range(random.choice((1, 3, 20, 70))):
        value = random.choice(([value], {"a": value}))
    return value


_CHANGES: Sequence[Change] = (_of_its_kind, _of_its_kind, _of_its_kind, _of_its_kind, _of_any_kind, _longer, _nested)


# Sealed again.


def sealed(data: Any) -> Record | str:
    """The record with the digests that fit it, or the text of what is none."""
    data["evidence_digest"] = "0" * 64
    try:
        inner = parse(canonical({key: value for key, value in data.items() if key != "schema"}))
        made = record_module._read_record(inner)  # its digest is not yet known
        inner["outcome"]["fingerprint"] = made.outcome.fingerprint()
        whole = {**inner, "schema": data["schema"], "evidence_digest": made.evidence_digest()}
        return Record.from_text(canonical(whole))
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is sent
        return json.dumps(data, sort_keys=True, separators=(",", ":"))


def members(made: Sequence[Record | str], extra: dict[str, bytes], number: int | None = 1) -> dict[str, bytes]:
    """What a bundle of these has, and a sweep of them if it has a number."""
    found: dict[str, bytes] = {}
    links = {}
    for one in made:
        text = one if isinstance(one, str) else one.text()
        found[f"records/{digest(text)}.json"] = text.encode()
        if isinstance(one, Record):
            try:
                links[one.spec.digest()] = digest(text)
                for name, (_, known) in layout.required_members(one).items():
                    if known in extra:
                        found[name] = extra[known]
            except Exception:  # noqa: BLE001 - as above
                continue
    if links and number is not None:
        try:
            specs = {one.spec.digest(): one.spec for one in made if isinstance(one, Record)}
            plan = plan_text(list(specs.values()))
            sweep = BundledSweep(digest(plan), "c" * 64, number, BEGAN, links).text()
            found[f"plans/{digest(plan)}.json"] = plan.encode()
            found[f"sweeps/{digest(sweep)}.json"] = sweep.encode()
        except Exception:  # noqa: BLE001 - as above
            return found
    return found
