"""No process finds what another has compiled: each has compile caches of its own, empty when it starts, and gone
when it has ended.
"""

from __future__ import annotations

import shutil

import pytest
from roots import HEAD, Lab

CASES = (
    HEAD
    + """
import os


def folders():
    return [os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]


@scenario.reference
def leaves_something(weight):
    for folder in folders():
        observe(f"folder {len(HEARD)}", folder, measurement=True)
        HEARD.append(sorted(os.listdir(folder)) if os.path.exists(folder) else [])
    observe("found", HEARD)
    observe("lies in its own folder", [os.path.dirname(folder) == os.getcwd() for folder in folders()])
    observe("threads", os.environ["TORCHINDUCTOR_COMPILE_THREADS"])
    os.makedirs(folders()[0], exist_ok=True)
    open(os.path.join(folders()[0], "compiled.so"), "w").close()
    return weight.sum()


@scenario.reference
def asks_torch(weight):
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    observe("is where torch looks", cache_dir() == folders()[0])
    import torch._inductor.config

    observe("threads", torch._inductor.config.compile_threads)
    return weight.sum()


HEARD = []
"""
)
ISOLATIONS = ("fresh", "forked")
ELSEWHERE = {"TORCHINDUCTOR_CACHE_DIR": "/elsewhere", "TRITON_CACHE_DIR": "/elsewhere"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    made = Lab.of(tmp_path_factory.mktemp("caches"), {"a/cases": CASES})
    specs = [
        made.spec("a/cases", "leaves_something", isolation=isolation, **how)
        for isolation in ISOLATIONS
        for how in ({"repeat": 0}, {"repeat": 1}, {"repeat": 0, "variables": ELSEWHERE})
    ]
    made.sweep([*specs, *(made.spec("a/cases", "asks_torch", isolation=isolation) for isolation in ISOLATIONS)])
    return made


def observed(ran):
    return {one.name: one.value for one in ran.seen.observed}


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("variables", [{}, ELSEWHERE], ids=["by default", "another setting"])
def test_a_process_has_empty_compile_caches_in_its_own_folder(lab, isolation, variables):
    """A setting cannot place them where others find them: it says itself that they are private."""
    made = lab.ran("a/cases", "leaves_something", isolation=isolation, variables=variables)
    assert observed(made)["found"] == [[], []]
    assert observed(made)["lies in its own folder"] == [True, True]
    assert made.record.spec.setting.compile_cache == "private"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_two_processes_have_two_compile_caches_and_neither_stays(lab, isolation):
    made = [lab.ran("a/cases", "leaves_something", isolation=isolation, repeat=repeat) for repeat in (0, 1)]
    folders = [{value for name, value in observed(one).items() if name.startswith("folder")} for one in made]
    assert all(folders)
    assert not folders[0] & folders[1]
    assert [one.folder for one in made if list(one.folder.rglob("compiled.so"))] == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_torch_compiles_there_and_starts_no_process_for_it(lab, isolation):
    assert observed(lab.ran("a/cases", "asks_torch", isolation=isolation)) == {
        "is where torch looks": True,
        "threads": 1,
    }
    assert observed(lab.ran("a/cases", "leaves_something", isolation=isolation))["threads"] == "1"


def test_a_machine_tells_which_compiler_there_is(lab, tmp_path):
    """What the need for Inductor is decided by. Without a C++ compiler on the path there is none."""
    here = lab.ran("a/cases", "asks_torch", isolation="fresh").machine()["compiler"]
    assert (here["c++"] is not None) == (shutil.which("g++") is not None)
    without = lab.ran("a/cases", "leaves_something", variables={"PATH": str(tmp_path)}).machine()["compiler"]
    assert without["c++"] is None
