"""Conversion of an exception of the case to an outcome that is bounded, printable, and free of this machine's paths."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
import traceback
from pathlib import Path

import torch

from ..core.canonical_json import digest, printable_text
from ..core.fingerprint import CUT, name_folders
from ..core.outcome import Outcome
from ..scenario import qualified_name

LONGEST = 65536
"""Maximum number of characters of a message or traceback."""


def raised_outcome(error: BaseException, phase: str, root: Path, first: str) -> Outcome:
    """Return `error` as the outcome of `phase`. The traceback begins at the file `first`."""
    return Outcome(
        kind="raised",
        phase=phase,
        type=qualified_name(type(error)),
        bases=tuple(qualified_name(base) for base in type(error).__mro__[1:-1]),
        message=_cut_text(replace_folders(error_message(error), root)),
        traceback=_cut_text(_traceback_text(error, root, first)),
        detail="",
    )


def error_message(error: BaseException) -> str:
    """Return the message of an exception, or a text that says why it cannot be printed."""
    try:
        return printable_text(str(error))
    except BaseException as broken:  # noqa: BLE001 - an exception that cannot be printed is an observation too
        return f"[{type(error).__name__} cannot be printed: its __str__ raised {type(broken).__name__}]"


def _cut_text(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}{CUT}{len(text)} characters in all, SHA-256 {digest(text)}]"


def _traceback_text(error: BaseException, root: Path, first: str) -> str:
    frames = list(traceback.extract_tb(error.__traceback__))
    # An error in backward comes from torch, without a frame of the case; frames of the worker are not informative.
    ours = str(root / "experiments" / "worker")
    own = next((index for index, frame in enumerate(frames) if not frame.filename.startswith(ours)), 0)
    start = next((index for index, frame in enumerate(frames) if frame.filename == first), own)
    lines = [
        f'  File "{replace_folders(f.filename, root)}", line {f.lineno}, in {f.name}\n    {f.line}'
        for f in frames[start:]
    ]
    return "\n".join(["Traceback (most recent call last):", *lines, qualified_name(type(error))])


def replace_folders(text: str, root: Path, folder: Path | None = None) -> str:
    """Replace the folders of this machine in a text by their names. `folder` is that of the case, if it may occur."""
    return name_folders(text, _named_folders(root, folder))


def _named_folders(root: Path, folder: Path | None) -> list[tuple[str, str]]:
    paths = sysconfig.get_paths()
    known = [
        *([] if folder is None else [(str(folder), "case/")]),
        (str(Path(torch.__file__).parent), "torch/"),
        (str(root), ""),
        (paths["purelib"], "site-packages/"),
        (paths["platlib"], "site-packages/"),
        (paths["stdlib"], "python/"),
        (sys.prefix, "prefix/"),
        (sys.base_prefix, "prefix/"),
        (tempfile.gettempdir(), "temporary/"),
        (str(Path.home()), "home/"),
    ]
    return sorted(((folder, name) for folder, name in known if len(folder) > 1), key=lambda pair: -len(pair[0]))
