"""Print results to stdout and messages to stderr, even if the reading end of the stream is closed."""

from __future__ import annotations

import os
import sys
from typing import IO

from experiments.core.text import visible_text


def print_message(sentence: str) -> None:
    """Print a message for people to stderr."""
    _print_line(sentence, sys.stderr)


def print_result(line: str) -> None:
    """Print a result to stdout."""
    _print_line(line, sys.stdout)


def _print_line(line: str, stream: IO[str]) -> None:
    try:
        print(visible_text(line, lines=True), file=stream, flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe. Python would report that once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
