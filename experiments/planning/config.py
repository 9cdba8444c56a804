"""The typed configuration of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf
from sqlalchemy import URL

from .multirun import disable_multirun_file


class ConfigError(Exception):
    """A value that is not allowed. The message says what was found and what is allowed."""


class Device(Enum):
    """Devices to run on."""

    present = "present"
    """Every device that the interpreter's torch can use."""
    cpu = "cpu"
    cuda = "cuda"


class Suite(Enum):
    """Named selections of scenarios."""

    full = "full"
    quick = "quick"
    """Scenarios marked quick, each case replayed once."""


class Isolation(Enum):
    """How the process of a case is started."""

    fresh = "fresh"
    """A new interpreter for each process."""
    forked = "forked"
    """A fork of an interpreter that has only imported torch, where the case and the system allow it."""
    audit = "audit"
    """Forked, and a fixed sample fresh as well, under another hash seed, for comparison."""


class Pass(Enum):
    """Passes in which a case is run, each in its own process."""

    plain = "plain"
    profiled = "profiled"


class Engine(Enum):
    """Where processes run."""

    local = "local"


class Sources(Enum):
    """Which copy of the sources the workers run."""

    original = "original"
    copied = "copied"
    """A verified copy in another folder."""


class Precision(Enum):
    """Float32 matmul precision."""

    torch = ""
    """The default of torch."""
    highest = "highest"
    high = "high"
    medium = "medium"


@dataclass
class IsolationConfig:
    """Isolation of processes, and the sample that is audited."""

    kind: Isolation = Isolation.fresh
    sample: float = 0.25
    """Share of the replays, 0 to 1, that an audit runs fresh as well."""


@dataclass
class EngineConfig:
    """The engine that runs the processes."""

    kind: Engine = Engine.local


@dataclass
class EnvironmentConfig:
    """Interpreter, variables and switches of the workers."""

    name: str = "default"
    python: str = ""
    """An interpreter with torch: a path, or a name to look up on PATH. Empty for the current interpreter."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables for the workers, in addition to the numeric ones of the caller."""
    threads: int | None = None
    """Compute threads. null for the number that each scenario sets, which is one unless it is about threads."""
    matmul_precision: Precision = Precision.torch
    """Float32 matmul precision under which the cases run."""
    sources: Sources = Sources.original
    """Whether the workers run the original sources or a verified copy."""


@dataclass
class ArchiveConfig:
    """Where records and blobs are stored."""

    url: str = MISSING
    """SQLAlchemy URL of the archive."""
    blobs: str = MISSING
    """Folder of tensors and outputs, by digest."""


@dataclass
class TrackingConfig:
    """Publishing to MLflow."""

    enabled: bool = True
    uri: str = MISSING
    """MLflow tracking URI."""
    artifacts: str = MISSING
    """Folder of MLflow's artifacts, if its store is a file."""
    wait: float = 120.0
    """Seconds to wait for MLflow to catch up after the sweep."""


@dataclass
class LimitsConfig:
    """Limits of a worker, unless its scenario sets others."""

    timeout: float = 120.0
    """Seconds."""
    memory: int | None = 8 * 2**30
    """Bytes of resident memory. null for no limit."""
    output: int = 65536
    """Bytes kept of each of stdout and stderr."""
    disk: int = 2**30
    """Bytes to which one file, and all files in the process's own folder together, may grow."""
    keep: int = 16384
    """Bytes up to which a tensor is stored whole."""
    keep_deciding: int = 4 * 2**20
    """Bytes up to which a tensor is stored whole if a verdict may depend on one of its elements: if cases are expected
    to differ from the reference, or to agree within its rounding."""


@dataclass
class ExponentConfig:
    """The exponent that a curve of a series should have."""

    value: float = MISSING
    within: float = MISSING


@dataclass
class SeriesConfig:
    """One scenario measured over one of its parameters and drawn as a figure: see `series.Series`."""

    title: str = MISSING
    scenario: str = MISSING
    parameter: str = MISSING
    """A parameter of the cases, or ``dtype`` or ``threads``."""
    cases: list[str] = MISSING
    measure: str = MISSING
    """``forward peak``, ``backward held``, ``forward seconds`` and the like, or the name of an observed number."""
    unit: str = ""
    line: str = ""
    """Name of an observed number that is drawn as a line."""
    exponents: dict[str, ExponentConfig] = field(default_factory=dict)
    """Expected exponent by case."""


@dataclass
class Config:
    """Configuration of one sweep."""

    scenarios: list[str] = field(default_factory=lambda: ["*"])
    """Scenario names, with * and ?."""
    cases: list[str] = field(default_factory=lambda: ["*"])
    """Case names with or without their variant, with * and ?. References are run whenever cases need them."""
    suite: Suite = Suite.full
    devices: list[Device] = MISSING
    passes: list[Pass] = field(default_factory=lambda: [Pass.plain, Pass.profiled])
    """Passes in which each case is run, each in its own process."""
    replays: int | None = None
    """Times each case is replayed. null for the scenario's number, else once; for measured cases, the numbers below."""
    measured_replays: int = 3
    """Times a case about memory or time that takes under ten seconds is replayed in the full suite."""
    long_measured_replays: int = 1
    """The same for cases that take ten seconds or more."""
    seed: int = 1729
    hash_seed: int = 0
    """PYTHONHASHSEED of the workers."""
    workers: int | None = None
    """Processes at a time. null for one for each core that this process may use."""
    dry_run: bool = False
    """Print the plan and run nothing."""
    capsule: str | None = None
    """File to write a capsule to: the chosen scenarios and their evidence, to be run anywhere with torch."""
    prove: str | None = None
    """A setting of the latest report, or ``all``: flip the factors in which it differs from this one, one at a time."""
    outputs: str = "outputs"
    """Folder for everything that a sweep writes."""
    series: dict[str, SeriesConfig] = field(default_factory=dict)
    """Series by name; only those of chosen scenarios are measured."""
    report: bool = True
    """Write the report after the sweep."""
    isolation: IsolationConfig = field(default_factory=IsolationConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's file source, which otherwise ignores the header of a file that begins with a byte-order mark."""

    def load_config(self, config_path: str) -> Any:
        """Load a file, with its header read without the byte-order mark."""
        found = super().load_config(config_path)
        path = Path(self.path, self._normalize_file_name(config_path))
        with path.open(encoding="utf-8-sig") as file:
            found.header = self._get_header_dict(file.read(512))
        return found


def register_schemas() -> None:
    """Register the schemas with Hydra, which then refuses unknown keys and wrong types.

    Also registers the resolver that turns a path into an SQLite URL, with % and ? escaped, and our own `-m`, which
    writes no file.
    """
    # Under the name of Hydra's own class, so that Hydra does not register its own.
    SourcesRegistry.instance().types["file"] = FileConfigSource
    OmegaConf.register_new_resolver("sqlite", _sqlite_url, replace=True)
    disable_multirun_file()
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, node in (
        ("isolation", IsolationConfig),
        ("environment", EnvironmentConfig),
        ("archive", ArchiveConfig),
        ("tracking", TrackingConfig),
        ("engine", EngineConfig),
    ):
        store.store(group=group, name="schema", node=node)


def _sqlite_url(path: str) -> str:
    return URL.create("sqlite", database=path).render_as_string(hide_password=False)
