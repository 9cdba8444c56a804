"""MLflow is a view: what is excluded leaves it with the next publish, and comes back when it is included again."""

from __future__ import annotations

import samples
from test_tracking import empty_store, kept, lab  # noqa: F401  (fixtures)

# mlflow's own, see test_tracking.


def test_a_record_and_a_sweep_that_are_excluded_leave_mlflow_and_come_back(lab):  # noqa: F811
    kept(lab, [samples.record("first"), samples.record("second")])
    assert lab.publish() == 0
    whole = lab.runs()
    assert len(whole) == 3
    (second,) = [one.digest for one in lab.archive.cells() if one.case == "second"]
    lab.archive.exclude(f"record:{second}", "made up", "somebody")
    assert lab.publish() == 0
    left = lab.runs()
    assert len(left) == 2
    assert left.keys() < whole.keys()
    assert not [name for name in left if "second" in name]
    (sweep,) = [one.id for one in lab.archive.sweeps()]
    lab.archive.exclude(f"sweep:{sweep}", "all of it", "somebody")
    assert lab.publish() == 0
    assert lab.runs() == {}
    for name in (f"record:{second}", f"sweep:{sweep}"):
        lab.archive.exclude(name, "it was real", "somebody", "include")
    assert lab.publish() == 0
    assert lab.runs().keys() == whole.keys()
