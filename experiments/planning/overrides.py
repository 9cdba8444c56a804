"""Refuse overrides that cannot be composed before Hydra starts, in one sentence with the nearest match."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Iterator, Sequence

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from experiments.core.masking import mask_secrets

FREE = ("environment.variables",)
"""Fields below which any key may be set."""


def refusal(arguments: Sequence[str], conf: Path) -> str:
    """Return why the command line cannot be composed, or an empty text if it can.

    The schemas must be registered. The values that a multirun sweeps are checked by Hydra, one job at a time.
    """
    texts = [argument for argument in arguments if not argument.startswith("-")]
    try:
        overrides = OverridesParser.create().parse_overrides(texts)
        with hydra.initialize_config_dir(str(conf), version_base="1.3"):
            known = _known_fields(hydra.compose("config"), conf)
            for override in overrides:
                problem = _problem(override, known, conf)
                if problem:
                    return problem
            swept = [override for override in overrides if override.is_sweep_override()]
            if swept and not {"-m", "--multirun"} & set(arguments):
                return f"{swept[0].input_line} has several values; add -m to run each, or [...] to give a list"
            # In a multirun, only the values shared by all jobs; a mandatory value may be among the others.
            plain = [override.input_line for override in overrides if not override.is_sweep_override()]
            composed = hydra.compose("config", overrides=[line for line in plain if line is not None])
            if not swept:
                OmegaConf.to_object(composed)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        return _error_sentence(error)
    return ""


def _known_fields(whole: DictConfig, conf: Path) -> set[str]:
    groups = {path.name for path in conf.iterdir() if path.is_dir()}
    return groups | set(_field_names(OmegaConf.to_container(whole, resolve=False)))


def _field_names(data: Any, prefix: str = "") -> Iterator[str]:
    for name, value in data.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _field_names(value, f"{prefix}{name}.")


def _problem(override: Override, known: set[str], conf: Path) -> str:
    key = override.key_or_group
    if key.split(".")[0].split("/")[0] == "hydra" or any(key.startswith(f"{free}.") for free in FREE):
        return ""
    if key not in known:
        return f"there is no field {key!r}; {_suggestion(key, known, '`python -m experiments --help` lists all')}"
    value = override.value()
    if (conf / key).is_dir() and isinstance(value, str):
        names = sorted(path.stem for path in (conf / key).glob("*.yaml"))
        if value not in names:
            return f"{key}={value} is not one of {', '.join(names)}; {_suggestion(value, names, 'choose one of them')}"
    return ""


def _suggestion(name: str, known: Sequence[str] | set[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _error_sentence(error: Exception) -> str:
    """Return the error and its cause on one line: Hydra puts the helpful part into the cause."""
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing: give {error.full_key}=..."
    texts = [" ".join(str(one).split()) for one in (error, error.__cause__) if one is not None]
    return mask_secrets("; ".join(dict.fromkeys(text for text in texts if text)))
