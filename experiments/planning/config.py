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

from .multirun import write_no_file


class ConfigError(Exception):
    """A value that cannot be planned. The message says what was found and what is allowed."""


class Device(Enum):
    present = "present"
    """Every device that the interpreter's torch can use."""
    cpu = "cpu"
    cuda = "cuda"


class Suite(Enum):
    full = "full"
    quick = "quick"
    """Scenarios marked quick, each case replayed once."""


class Isolation(Enum):
    fresh = "fresh"
    """A new interpreter for each process."""
    forked = "forked"
    """A fork of an interpreter that has only imported torch, where the case and the system allow it."""
    audit = "audit"
    """Forked, and a fixed sample fresh as well, under another hash seed, to be compared."""


class Pass(Enum):
    plain = "plain"
    profiled = "profiled"


class Engine(Enum):
    local = "local"


class Sources(Enum):
    original = "original"
    copied = "copied"
    """A verified copy in another folder."""


class Precision(Enum):
    torch = ""
    """As torch has it."""
    highest = "highest"
    high = "high"
    medium = "medium"


@dataclass
class IsolationConfig:
    kind: Isolation = Isolation.fresh
    sample: float = 0.25
    """Share of the replays, 0 to 1, that an audit runs fresh as well."""


@dataclass
class EngineConfig:
    kind: Engine = Engine.local


@dataclass
class EnvironmentConfig:
    """Under which interpreter and variables the workers run."""

    name: str = "default"
    python: str = ""
    """An interpreter that has torch: a path, or a name to be found on PATH. Empty: the one that runs this."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables that the workers get beside the numeric ones of the caller."""
    threads: int | None = None
    """Compute threads. null: as many as each scenario asks for, which is one where threads are not the point."""
    matmul_precision: Precision = Precision.torch
    """Float32 matmul precision that the cases find."""
    sources: Sources = Sources.original
    """Whether the workers run from the sources here or from a verified copy."""


@dataclass
class ArchiveConfig:
    url: str = MISSING
    """SQLAlchemy URL of the archive."""
    blobs: str = MISSING
    """Folder of tensors and outputs, by digest."""


@dataclass
class TrackingConfig:
    enabled: bool = True
    uri: str = MISSING
    """MLflow tracking URI."""
    artifacts: str = MISSING
    """Folder of MLflow's artifacts, for a store that is a file."""
    wait: float = 120.0
    """Seconds to wait, once the sweep is over, for MLflow to catch up."""


@dataclass
class LimitsConfig:
    """What a worker may use, unless its scenario says otherwise."""

    timeout: float = 120.0
    """Seconds."""
    memory: int | None = 8 * 2**30
    """Bytes of resident memory. null for no limit."""
    output: int = 65536
    """Bytes kept of each of stdout and stderr."""
    disk: int = 2**30
    """Bytes that one file, and all files in the process's own folder, may grow to."""
    keep: int = 16384
    """Bytes up to which a tensor is kept whole."""
    keep_deciding: int = 4 * 2**20
    """Bytes up to which a tensor is kept whole where a verdict may hang on one of its elements: where cases are to
    differ from the reference, or to be within its rounding."""


@dataclass
class ExponentConfig:
    """The exponent that a curve of a series should have."""

    value: float = MISSING
    within: float = MISSING


@dataclass
class SeriesConfig:
    """One scenario over one of its parameters, drawn as a figure: see `series.Series`."""

    title: str = MISSING
    scenario: str = MISSING
    parameter: str = MISSING
    """A parameter of the cases, or dtype or threads."""
    cases: list[str] = MISSING
    measure: str = MISSING
    """``forward peak``, ``backward held``, ``forward seconds`` and the like, or the name of an observed number."""
    unit: str = ""
    line: str = ""
    """Name of an observed number that is drawn in as a line."""
    exponents: dict[str, ExponentConfig] = field(default_factory=dict)
    """By case."""


@dataclass
class Config:
    """One sweep."""

    scenarios: list[str] = field(default_factory=lambda: ["*"])
    """Names, with * and ?."""
    cases: list[str] = field(default_factory=lambda: ["*"])
    """Case names with their variant, with * and ?. References are run whenever they are needed."""
    suite: Suite = Suite.full
    devices: list[Device] = MISSING
    passes: list[Pass] = field(default_factory=lambda: [Pass.plain, Pass.profiled])
    """How each case is looked at, each in a process of its own."""
    replays: int | None = None
    """Times each case is replayed. null: as often as its scenario says, else once; and what is measured as below."""
    measured_replays: int = 3
    """Times a case is replayed whose memory or time is the point and that takes under ten seconds; the full suite."""
    long_measured_replays: int = 1
    """Likewise of those that take ten seconds or more."""
    seed: int = 1729
    hash_seed: int = 0
    """PYTHONHASHSEED of the workers."""
    workers: int | None = None
    """Processes at a time. null: one for each core that this process may use."""
    dry_run: bool = False
    """Print the plan and run nothing."""
    capsule: str | None = None
    """File to write the chosen scenarios and their evidence to, to be run anywhere with torch."""
    prove: str | None = None
    """A setting of the latest report, or all: flip what tells it from this one, one factor at a time."""
    outputs: str = "outputs"
    """Folder of all that a sweep writes."""
    series: dict[str, SeriesConfig] = field(default_factory=dict)
    """What is drawn over a parameter, by name; of scenarios that are chosen."""
    report: bool = True
    """Write the evidence report when the sweep is over."""
    isolation: IsolationConfig = field(default_factory=IsolationConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's own, which overlooks what stands at the top of a file that begins with a byte-order mark."""

    def load_config(self, config_path: str) -> Any:
        found = super().load_config(config_path)
        path = Path(self.path, self._normalize_file_name(config_path))
        with path.open(encoding="utf-8-sig") as file:
            found.header = self._get_header_dict(file.read(512))
        return found


def register() -> None:
    """Make the schemas known to Hydra, which then refuses unknown keys and wrong types, and how a file becomes an
    address: pasted, a path with % or ? in it would be another one. `-m` is ours, which writes no file.
    """
    # Under the name of Hydra's own class, which does not replace it then.
    SourcesRegistry.instance().types["file"] = FileConfigSource
    OmegaConf.register_new_resolver("sqlite", _sqlite, replace=True)
    write_no_file()
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


def _sqlite(path: str) -> str:
    return URL.create("sqlite", database=path).render_as_string(hide_password=False)
