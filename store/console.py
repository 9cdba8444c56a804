"""Results on stdout, sentences for people on stderr, whether or not anybody still listens."""

from __future__ import annotations

import os
import sys
from typing import IO

from experiments.core.text import visible


def say(sentence: str) -> None:
    _print(sentence, sys.stderr)


def tell(line: str) -> None:
    _print(line, sys.stdout)


def _print(line: str, stream: IO[str]) -> None:
    try:
        print(visible(line, lines=True), file=stream, flush=True)
    except BrokenPipeError:
        # Whoever listened is gone. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
