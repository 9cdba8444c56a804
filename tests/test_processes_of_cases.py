"""What a case starts by `multiprocessing` can import the scenario, however it starts it: Python 3.14 does not fork."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import roots
from test_sweep import project, run

SCENARIO = '''"""Processes that a case starts."""

import multiprocessing

import torch
from torch.utils.data import DataLoader, Dataset

from experiments.scenario import Scenario, agrees, observe

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    return {"weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_()}


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([index / 16, index / 8])


def double(rank, total):
    with total.get_lock():
        total.value += 2 * (rank + 1)


def answer(number):
    return number + 1


@scenario.reference
def alone(weight):
    return weight.square().sum()


@scenario.repair(agrees(bitwise=True), timeout=240)
def loads_by_spawn(weight):
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    observe("loaded", [batch.sum().item() for batch in loader])
    return weight.square().sum()


@scenario.repair(agrees(bitwise=True), timeout=240)
def loads_by_forkserver(weight):
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context="forkserver")
    observe("loaded", [batch.sum().item() for batch in loader])
    return weight.square().sum()


@scenario.repair(agrees(bitwise=True), timeout=240)
def spawns(weight):
    total = torch.multiprocessing.get_context("spawn").Value("i", 0)
    torch.multiprocessing.spawn(double, (total,), nprocs=2)
    observe("total", total.value)
    return weight.square().sum()


@scenario.repair(agrees(bitwise=True), timeout=240)
def asks_a_forkserver(weight):
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        observe("answers", pool.map(answer, [1, 2]))
    return weight.square().sum()
'''
CASES = {
    "loads_by_spawn": {"loaded": [1.125, 4.125]},
    "loads_by_forkserver": {"loaded": [1.125, 4.125]},
    "spawns": {"total": 6},
    "asks_a_forkserver": {"answers": [2, 3]},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """In a folder that lies as deep as those of users may: the address of a socket has a hundred bytes."""
    return roots.Lab.of(tmp_path_factory.mktemp("processes") / ("deep" * 20), {"a/cases": SCENARIO})


def asked(lab, case: str, isolation: str):
    return lab.spec("a/cases", case, isolation=isolation, timeout=240.0)


SAMPLE = (("loads_by_spawn", "forked"), ("spawns", "fresh"), ("asks_a_forkserver", "forked"))
"""Each process that is started imports torch, so the others are slow."""
ALL = [
    pytest.param(case, isolation, marks=() if (case, isolation) in SAMPLE else pytest.mark.slow)
    for case in CASES
    for isolation in ("fresh", "forked")
]


@pytest.mark.parametrize(("case", "isolation"), ALL)
def test_a_process_of_a_case_finds_what_the_scenario_defines(lab, case, isolation):
    specs = [asked(lab, case, isolation)]
    lab.sweep(specs)
    ran = lab.ran("a/cases", case, isolation=isolation, timeout=240.0)
    assert ran.outcome.kind == "finished", (ran.outcome, ran.stderr.decode())
    assert {one.name: one.value for one in ran.seen.observed} == CASES[case]
    assert not (lab.root / "experiments" / "scenarios" / "a" / "__pycache__").exists()


@pytest.mark.slow
def test_a_process_of_a_case_finds_it_in_a_capsule(tmp_path):
    """There the package has another name, and lies where the capsule unpacks it."""
    root = project(tmp_path / "home", spawning=SCENARIO)
    chosen = ("cases=[loads_by_spawn]", "passes=[plain]")
    made = run(root, "capsule=one.pyz", "tracking=none", "isolation=forked", *chosen)
    assert made.returncode == 0, made.stdout + made.stderr
    (tmp_path / "away").mkdir()
    shutil.move(root / "one.pyz", tmp_path / "away" / "one.pyz")
    shutil.rmtree(root)
    ended = subprocess.run(
        [sys.executable, "one.pyz"], cwd=tmp_path / "away", capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 cases: 2 identical" in ended.stdout
