"""Normalization of error messages: removal of what changes from run to run.

The only place that knows what changes. A worker applies `name_folders` to what it records, so that a record does not
name folders of the machine; messages are compared after `normalize`. Shapes, byte counts and names stay.

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Callable, Mapping, Sequence, Tuple, Union

FOLDERS = ("torch", "site-packages", "python", "prefix", "temporary", "home")
"""Names that a worker records in place of the folders of its machine."""

_CODE = r"\.(?:py|so|cpp|h|cu|dll|pyd)\b(?::\d+)?"
PATHS = (
    r"(?P<quote>['\"])(?:[A-Za-z]:\\|/)[^'\"\n]{0,4096}(?P=quote)",
    # Folders may have spaces in them, but nothing beyond the first file of code belongs to the path.
    r"(?:\b[A-Za-z]:|(?<![\w.]))(?:[/\\][\w.+ -]{1,255}?){0,40}?[/\\][\w.+-]{1,255}?" + _CODE,
    r"(?<![\w.+-])[\w.+-]{0,255}(?:[/\\][\w.+-]{1,255}){1,40}?" + _CODE,
    r"(?<![\w.:/\])}])/(?:[\w.+-]{1,255}/){1,40}[\w.+-]*",
    r"\b[A-Za-z]:\\(?:[\w.+-]{1,255}\\){0,40}[\w.+-]+",
)
"""Patterns of paths: in quotes; of code, absolute and relative; of anything, absolute on Linux and Windows. They are
bounded, so that a long message does not take long. Fingerprints of schemas 1 to 3 use them, so they never change."""

RELATIVE = 2
"""Index in `PATHS` of the pattern of relative paths of code."""

LONGEST = 2**16
"""Characters of the longest observed text that is normalized. A longer one is data, not a message, and stays as it is:
to search ten million characters takes ten seconds, and a record is compared more than once."""

CUT = "\n[cut here: "
"""Start of the mark that a worker appends to a message that it cut."""


def name_folders(text: str, folders: Sequence[Tuple[str, str]]) -> str:
    """Replace folders in a text by their names. `folders` are pairs of path and name, the longest path first."""
    for folder, name in folders:
        text = text.replace(folder + os.sep, name)
        # The folder itself, unless it is the start of a longer name.
        text = re.sub(re.escape(folder) + r"(?![\w.+-])", name.rstrip("/") or ".", text) if name else text
    return text


@functools.lru_cache(maxsize=2**12)
def normalize(text: str) -> str:
    """Return a text up to its first blank line, without what changes from run to run.

    Removed or replaced are stack frames and their number, paths, names of temporary files, addresses, IDs of processes
    and threads, ports, and times.
    """
    text = text.strip()
    whole, cut, _ = text.partition(CUT)
    # A message that was cut ends within a line.
    text = whole.rpartition("\n")[0] or whole if cut else text
    head = re.split(r"\n[ \t]*\n", text, maxsplit=1)[0]
    kept = "\n".join(_remove_frames(head.split("\n")))
    for pattern, replacement in _ACCIDENTS:
        kept = pattern.sub(replacement, kept)
    return "\n".join(line.rstrip(" \t") for line in kept.split("\n")).strip()


def normalize_value(value: object) -> object:
    """Normalize every text of a JSON value that is not longer than `LONGEST`. All paragraphs of a text are kept."""
    if isinstance(value, str) and len(value) > LONGEST:
        return value
    if isinstance(value, str):
        return "\n\n".join(normalize(part) for part in re.split(r"\n[ \t]*\n", value))
    if isinstance(value, Mapping):
        return {key: normalize_value(inside) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [normalize_value(inside) for inside in value]
    return value


# Frames.

_FRAME = re.compile(
    r"""\s*(?:
        File\ ".*",\ line\ \d+.*                        # Python's traceback
        |(?:\w+\ )?Traceback\ \(most\ recent\ call\ last\):
        |(?:-|\#\d+:?)\s.*\.(?:py|pyx|c|cc|cpp|cxx|h|cu)(?::\d+|,?\ line\ \d+).*     # a listed frame
        |at\s.*\.(?:py|pyx|c|cc|cpp|cxx|h|cu):\d+(?::\d+)?\)?
        |frame\ \#\d+:.*                                # torch's C++ trace
        |\[Previous\ line\ repeated\ \d+\ more\ times?\]
        |[(\[.]+\s*\d+\ (?:(?:more|other|additional|skipped)\ )?(?:stack\ )?frames?\b.*
    )$""",
    re.VERBOSE,
)
_SOURCE = re.compile(r"\s{2,}\S")


def _remove_frames(lines: Sequence[str]) -> list[str]:
    """Remove stack frames, and the source lines and markers below each frame of a traceback."""
    kept: list[str] = []
    indent = -1
    for line in lines:
        if _FRAME.match(line):
            indent = len(line) - len(line.lstrip()) if line.lstrip().startswith("File ") else -1
        elif indent >= 0 and _SOURCE.match(line) and len(line) - len(line.lstrip()) > indent:
            continue
        else:
            indent = -1
            kept.append(line)
    return kept


# Accidents.

_MONTHS = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAYS = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_NAMED = "|".join(re.escape(name) for name in FOLDERS if name not in ("torch", "python"))

Replacement = Union[str, Callable[["re.Match[str]"], str]]


def _path_placeholder(match: re.Match[str]) -> str:
    """Return what replaces a path, in quotes if the path was."""
    quote = match.groupdict().get("quote") or ""
    return f"{quote}PATH{quote}"


_RULES: Sequence[Tuple[str, Replacement, int]] = (
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID", re.IGNORECASE),
    (r"\bfile://[^\s'\"<>]*", "PATH", 0),
    (rf"(?<![\w/])(?:{_NAMED})/[^\s'\"<>()\[\]{{}},;]*", "PATH", 0),
    *((path, _path_placeholder, 0) for path in PATHS),
    (r"(?<![\w/.+-])([\w.+-]{1,100}\.(?:py|pyx|c|cc|cpp|cxx|h|hpp|cu|cuh)):\d+", r"\1:N", 0),
    (r"(?<![\w.+-])tmp[a-z0-9_]{8}(?![\w])", "TEMPORARY", 0),
    # A short hexadecimal number is a flag or a size, unless the text says that it is an address.
    (r"(?<=\bat )0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{6,}", "ADDRESS", 0),
    (r"\bid([ =:]+)\d{9,}", r"id\1ADDRESS", re.IGNORECASE),
    # Times come before ports: both contain colons.
    (
        rf"\b{_DAYS},? (?:\d{{1,2}} )?{_MONTHS} +(?:\d{{1,2}} )?[\d:.]{{5,}}(?: ?[A-Z]{{3,4}})?(?: \d{{4}})?",
        "TIME",
        0,
    ),
    (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?", "TIME", 0),
    (r"\[[WEIF]\d{4} \d\d:\d\d:\d\d\.\d+", "[TIME", 0),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "TIME", 0),
    (r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ns|us|µs|ms|s|sec|secs|seconds?|minutes?|hours?)\b", "DURATION", 0),
    (r"\b(\d{1,3}(?:\.\d{1,3}){3})('?, ?|:)\d{1,5}\b", r"\1\2PORT", 0),
    (r"(\[[0-9a-fA-F]*:[0-9a-fA-F:]*\]:)\d{1,5}\b", r"\1PORT", 0),
    # A name before a colon may be a parameter, unless the text says that it is a host.
    (
        r"(?<![\w.-])(localhost|(?:(?<=//)|(?<=host )|(?<=server )|(?<=connect to )|(?<=address ))[\w-]{1,63}"
        r"(?:\.[\w-]{1,63}){0,8}):\d{2,5}\b(?!\.)",
        r"\1:PORT",
        0,
    ),
    (r"\b(port[ =:]+)\d{1,5}\b", r"\1PORT", re.IGNORECASE),
    (r"\b((?:p|t)id(?:s|\(s\))?\)?[ =:#]+)\d+(?:(?:, ?| and )\d+)*", r"\1N", re.IGNORECASE),
    (r"\b((?:process|thread)(?: id| ident)?[ =:#]+)\d+\b", r"\1N", re.IGNORECASE),
    (r"\bline \d+", "line N", 0),
    (r"\b(\d+)(?= (?:more |other |additional |skipped )?(?:stack )?frames?\b)", "N", 0),
)
_ACCIDENTS = [(re.compile(pattern, flags), replacement) for pattern, replacement, flags in _RULES]
"""Patterns and their replacements, applied in this order."""
