"""Hydra's `-m` without the file that it leaves: it has the whole configuration in it, addresses with passwords too."""

from __future__ import annotations

from typing import Any, Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper


def write_no_file() -> None:
    """From now on, `-m` writes no `multirun.yaml`. Hydra has no setting for that."""
    # Hydra loads its plugins by itself, so the class is another one than an import here gives.
    for plugin in Plugins.instance().discover(Sweeper):
        if plugin.__name__ == BasicSweeper.__name__:
            plugin.sweep = _sweep  # type: ignore[attr-defined]


def _sweep(self: BasicSweeper, arguments: list[str]) -> Any:
    """One job after another, as Hydra's own `sweep` has them run once it has written."""
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
            # Asked for its value, a job that failed raises what it failed with.
            _ = one.return_value
        returned.append(results)
    return returned
