"""Every figure of every sentence, calculated again from the JSON of the records that it cites, by other code."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy
import pytest
import torch

from reports.claims.registry import ADVICE, CLAIMS

EVERY = {one.id: one for one in (*CLAIMS, *ADVICE)}
TALLY = re.compile(r" \((?:(one record|\d+ records) of (?:one case|\d+ cases)|(\d+) cases, one record each)([^()]*)\)")
NUMBER = re.compile(r"(?<![\w.:,])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]\d+)?(?![\w])")
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def decided(published):
    whole = published.evidence()
    return {name: one.decide(whole) for name, one in EVERY.items()}


class Read:
    """A record as it was written."""

    def __init__(self, text: str) -> None:
        self.data = json.loads(text)
        question = self.data["spec"]["question"]
        self.scenario, self.case, self.dtype = question["scenario"].split("/")[1], question["case"], question["dtype"]
        self.given, self.role, self.pass_ = question["parameters"], self.data["spec"]["mark"]["role"], question["pass"]
        self.label = json.dumps([self.scenario, self.case, self.given, self.dtype], sort_keys=True)
        self.seen = self.data["observation"] or {}

    def rows(self, phase: str) -> Any:
        return next(row for row in self.seen["memory"] if row["phase"] == phase)

    def peak(self, phase: str = "forward") -> int:
        return self.rows(phase)["peak"] - self.rows(phase)["before"]

    def held(self) -> int:
        return self.rows("forward")["after"] - self.rows("forward")["before"]

    def overall(self) -> int:
        return max(self.peak(), self.held() + self.peak("backward"))

    def saw(self, name: str) -> Any:
        return next(one["value"] for one in self.seen["observed"] if one["name"] == name)

    def scores(self) -> float:
        return self.peak() / self.saw("score tensor, bytes")

    def outputs(self) -> float:
        (query,) = [one for one in self.seen["tensors"] if (one["role"], one["name"]) == ("input", "query")]
        return self.peak() / (4 * math.prod(query["shape"]))

    def asked(self) -> int:
        return int(re.search(r"allocate (\d+) bytes", self.data["outcome"]["message"])[1])


def two(value: float, more: int = 0) -> str:
    """Two significant digits, three where the first is a 1."""
    short = f"{value:.{1 + more + f'{value:e}'.startswith('1')}e}"
    return short if value and abs(value) < 1e-4 else "0" if not value else format(Decimal(short), "f")


def measured(listed: Sequence[Read], amount: Callable[[Read], float], per: float = 1.0) -> set[str]:
    """The numbers of a figure."""
    found = [amount(one) / per for one in listed]
    cases = len({one.label for one in listed})
    low, high = span(found)
    if cases > 1:
        return {low, high, str(len(found)), str(cases)}
    return {two(statistics.median(found))} | ({str(len(found)), low, high} if len(found) > 1 else set())


def span(found: Sequence[float]) -> tuple[str, str]:
    """The smallest and the largest, with up to two more digits where they would look the same."""
    told = [(two(min(found), more), two(max(found), more)) for more in range(3)]
    return next((one for one in told if one[0] != one[1]), told[0])


def power(listed: Sequence[Read]) -> set[str]:
    """Exponent and standard error, by numpy, of all runs."""
    keys = [one.given["keys"] for one in listed]
    x, y = numpy.log(keys), numpy.log([one.peak() for one in listed])
    design = numpy.stack([x, numpy.ones_like(x)], axis=1)
    solved, left, *_ = numpy.linalg.lstsq(design, y, rcond=None)
    error = math.sqrt(float(left[0]) / (len(keys) - 2) / float(((x - x.mean()) ** 2).sum()))
    first = f"{error:.0e}" if not f"{error:e}".startswith("1") else f"{error:.1e}"
    decimals = -Decimal(first).as_tuple().exponent
    return {f"{solved[0]:.{decimals}f}", f"{error:.{decimals}f}"}


def bytes_(number: int) -> set[str]:
    return {f"{number:,}", f"{number / 2**30:g}", f"{number / 1e9:.1f}"}


def of(listed: Sequence[Read], *cases: str, **given: Any) -> list[Read]:
    return [
        one
        for one in listed
        if one.case in cases
        and one.pass_ == "plain"
        and all(one.given.get(key) == value for key, value in given.items())
    ]


def compiled(listed: Sequence[Read]) -> set[str]:
    mine = of(listed, "compiled")
    return measured(mine, Read.peak, MEBIBYTE) | measured(mine, Read.outputs) | places(mine)


def places(listed: Sequence[Read]) -> set[str]:
    keys = [one.given["keys"] for one in listed]
    return {f"{min(keys):,}", f"{max(keys):,}"}


def rounds(*listed: Read) -> set[str]:
    return {str(sum(one.saw(name) for one in listed)) for name in ("rounds that failed", "rounds")}


def failed(listed: Sequence[Read]) -> set[str]:
    """Trainings that failed, of all: a case ends with the first."""
    raised = sum(one.data["outcome"]["kind"] == "raised" for one in listed)
    return {str(raised), str(sum(one.saw("trainings") for one in listed))}


def graphs(listed: Sequence[Read]) -> set[str]:
    return {str(one.saw(name)) for one in listed for name in ("graphs", "steps that ran compiled")}


def fits(listed: Sequence[Read]) -> set[str]:
    """Of one score tensor, and of as many as are held in the smaller case."""
    asked, small = of(listed, "uncompiled", keys=81920)[0].asked(), _in_memory(listed)
    alone = 95e9 / (asked / 81920)
    many = [f"{int(Decimal(two(alone / pick(one.scores() for one in small)))):,}" for pick in (max, min)]
    return {two(asked / 95e9), f"{math.floor(alone):,}", *many, *bytes_(asked), *measured(small, Read.scores)}


def _in_memory(listed: Sequence[Read]) -> list[Read]:
    return [one for one in of(listed, "uncompiled") if one.scenario == "dense_fallback_memory"]


def logits(listed: Sequence[Read]) -> set[str]:
    told = {f"{of(listed, 'not_checkpointed_and_measured')[0].saw('bytes of a logits tensor') / MEBIBYTE:,.0f}"}
    for case in sorted({one.case for one in listed}):
        mine = of(listed, case)
        told |= measured(mine, Read.held, MEBIBYTE) | measured(mine, Read.overall, MEBIBYTE)
    return told


def masks(listed: Sequence[Read]) -> set[str]:
    mine = of(listed, "uncompiled")
    names = [one["name"] for one in mine[0].seen["tensors"] if one["name"].startswith("attended under")]
    return {str(len(names))} | measured(mine, Read.scores) | measured(of(listed, "without_the_mask"), Read.scores)


def times(listed: Sequence[Read]) -> set[str]:
    def share(one: Read) -> float:
        return one.saw("seconds at density 0.0625") / one.saw("seconds at density 1.0")

    told = measured(of(listed, "uncompiled_memory"), Read.scores)
    return told | measured(of(listed, "compiled"), share) | measured(of(listed, "uncompiled"), share)


def bounds(listed: Sequence[Read]) -> set[str]:
    marked = [mark for one in of(listed, "compiled") for mark in one.data["spec"]["mark"]["expectations"]]
    return {f"{mark['at_most'] // MEBIBYTE}" for mark in marked if mark["kind"] == "peaks"}


DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def silent(listed: Sequence[Read], fetch: Callable[[str], bytes | None]) -> set[str]:
    """Of each dtype and size the gradient that differs most from MATH's: by how much, its error, MATH's, and what
    rounding allows: twice MATH's and a unit in the last place of MATH's largest.
    """
    told = set()
    mine = [one for one in listed if one.scenario == "attention_policy_changes_silently_when_reentrant"]
    groups = {(one.dtype, one.given["size"]) for one in mine if one.role == "broken"}
    for dtype, size in groups:
        here = [one for one in mine if one.given["size"] == size]
        ours = [one for one in here if one.role == "broken" and one.dtype == dtype]
        math_ = next(one for one in here if one.role == "reference" and one.dtype == dtype)
        exact = next(one for one in here if one.dtype == "float64" and _input(one) == dtype)
        rows = []
        for name in ("query", "key", "value"):
            for run in ours:
                gradients = [_gradient(one, name, fetch) for one in (run, math_, exact)]
                pairs = ((0, 1), (0, 2), (1, 2))
                apart = [float((gradients[a] - gradients[b]).abs().max()) for a, b in pairs]
                largest = float(gradients[1].abs().max())
                place = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(DTYPES[dtype]).eps
                rows.append([*apart, 2 * (apart[2] + place)])
        told |= {two(one) for one in max(rows)}
        elements = math.prod(next(one for one in ours[0].seen["tensors"] if one["role"] == "gradient")["shape"])
        told |= {"1024", str(elements)} if len(gradients[0]) < elements else set()
    return told


def _input(one: Read) -> str:
    return one.data["spec"]["question"]["input_dtype"]


def _gradient(one: Read, name: str, fetch: Callable[[str], bytes | None]) -> torch.Tensor:
    tensor = next(t for t in one.seen["tensors"] if (t["role"], t["name"]) == ("gradient", name))
    content = fetch(tensor["digest"] if tensor["whole"] else tensor["samples"])
    return torch.frombuffer(bytearray(content), dtype=DTYPES[tensor["dtype"]]).double()


def everything(name: str, listed: Sequence[Read], fetch: Callable[[str], bytes | None]) -> set[str]:
    """The numbers of a sentence, without those of its tallies."""
    return {
        "A2": lambda: set("24818"),
        "A7": lambda: {"0"},
        "A12": lambda: {"256"},
        "A10": lambda: silent(listed, fetch),
        "A13": lambda: {str(len(listed)), "1", *(str(len([o for o in listed if o.pass_ == p])) for p in PASSES)},
        "B1": lambda: (
            measured(_in_memory(listed), Read.scores)
            | places(_in_memory(listed))
            | power(_in_memory(listed))
            | compiled(listed)
        ),
        "B2": lambda: (
            {"81,920", "76,288", "298", "328"}
            | bytes_(of(listed, "uncompiled", keys=81920)[0].asked())
            | bytes_(of(listed, "uncompiled", keys=76288)[0].asked())
            | bytes_(of(listed, "counted")[0].saw("one score tensor, bytes"))
        ),
        "B3": lambda: masks(listed),
        "B4": lambda: times(listed),
        "B5": lambda: rounds(*of(listed, "trained_from_cold")),
        "B6": lambda: (
            rounds(*of(listed, "trained_from_cold", checkpoint_kind="reentrant"))
            | rounds(*of(listed, "trained_from_cold", checkpoint_kind="non-reentrant"))
        ),
        "B7": lambda: (
            measured(
                of(listed, "compiled_but_forced_to_run_eagerly", "called_where_the_compiler_is_disabled"), Read.scores
            )
            | compiled(listed)
        ),
        "B8": lambda: (
            {number for threads in (1, 2, 3) for number in failed(of(listed, *COLD, threads=threads))}
            | rounds(*of(listed, "trained_from_cold"))
            | rounds(*of(listed, "forward_and_backward_compiled_before_the_threads_start"))
        ),
        "B10": lambda: graphs(of(listed, "compiled_with_another_mask_at_each_step")),
        "B11": lambda: logits(listed),
        "B13": lambda: {"8", "19.5", "13.5", "1.444"},
        "B14": lambda: {"81,920", "95"} | fits(listed),
        "B-1": lambda: rounds(*[one for one in listed if one.role == "repair"]),
        "B-2": lambda: rounds(*[one for one in listed if one.role == "repair"]),
        "B-4": lambda: rounds(*[one for one in listed if one.role == "repair"]),
        "B-5": lambda: compiled(listed) | bounds(listed),
        "B-6": lambda: graphs(listed),
    }.get(name, set)()


PASSES = ("plain", "profiled")
COLD = ("all_threads_from_cold",)


@pytest.mark.parametrize("name", EVERY)
def test_every_figure_of_a_sentence_is_found_again_by_other_code(name, decided, published):
    ruling = decided[name]
    listed = [Read(published.by_name[one].text()) for one in ruling.digests]
    told = set(NUMBER.findall(TALLY.sub("", ruling.reason)))
    assert told == everything(name, listed, published.fetch), ruling.reason


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("A13", "B13")])
def test_a_sentence_counts_what_it_cites(name, decided, published):
    """Each record that is no reference is counted once, or as often as it is looked at for something else."""
    ruling = decided[name]
    tallies = [TALLY.fullmatch(one[0]) for one in TALLY.finditer(ruling.reason)]
    counted = sum(int((one[1] or one[2]).split()[0].replace("one", "1")) for one in tallies)
    own = sum(published.by_name[one].spec.mark.role != "reference" for one in ruling.digests)
    looked_at_twice = {"B10", "B11", "B-1", "B-2", "B-4"}
    assert counted > own if name in looked_at_twice else counted == own
    assert any("reference" in one[3] for one in tallies) == (own < len(ruling.digests))


def test_the_docstring_is_quoted_by_its_digest(decided, published):
    seen = {Read(published.by_name[one].text()).saw("sha256 of the docstring")[:12] for one in decided["A12"].digests}
    assert f"(SHA-256 {', '.join(sorted(seen))})" in decided["A12"].reason


def test_no_figure_has_an_error_of_nothing(decided):
    assert not any(re.search(r"± 0(?:\.0*)?(?![.\d])", ruling.reason) for ruling in decided.values())
