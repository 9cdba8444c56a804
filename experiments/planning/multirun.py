"""Hydra's `-m` without the file that it writes, which contains the whole configuration, including passwords in URLs."""

from __future__ import annotations

from typing import Any, Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper


def disable_multirun_file() -> None:
    """Make `-m` write no `multirun.yaml`. Hydra has no setting for that."""
    # Hydra loads its plugins itself, so the class is not the one that is imported here.
    for plugin in Plugins.instance().discover(Sweeper):
        if plugin.__name__ == BasicSweeper.__name__:
            plugin.sweep = _run_jobs  # type: ignore[attr-defined]


def _run_jobs(self: BasicSweeper, arguments: list[str]) -> Any:
    """Run one job after another, as Hydra's own `sweep` does after writing its file."""
    assert self.hydra_context is not None, "`setup` has been called"
    assert self.launcher is not None, "`setup` has been called"
    parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
    given = parser.parse_overrides([*self._parse_config(), *arguments])
    self.overrides = self.split_arguments(given, self.max_batch_size)
    returned: list[Sequence[JobReturn]] = []
    while not self.is_done():
        batch = self.get_job_batch()
        self.validate_batch_is_legal(batch)
        results = self.launcher.launch(batch, initial_job_idx=sum(map(len, returned)))
        for one in results:
            # Reading the return value of a failed job raises its exception.
            _ = one.return_value
        returned.append(results)
    return returned
