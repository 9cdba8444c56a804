"""The view in MLflow from the command line.

    python -m reports.mlflow sync [--sweep ID | --all]    bring MLflow up to date with the archive
    python -m reports.mlflow ui [--port 5000]             browse it on this machine

Exit status: 0 done, 2 could not, 130 interrupted.
"""

from __future__ import annotations

from experiments.core import streams

if __name__ == "__main__":
    streams.begin("reports.mlflow: stopped; nothing was begun yet")

import argparse
import sys
from collections.abc import Callable, Sequence

from experiments.core.masking import masked
from experiments.core.text import visible
from reports.mlflow import sync, ui
from store.errors import ArchiveError

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    asked = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    command: Command = asked.command
    try:
        return command(asked)
    except ArchiveError as error:
        print(f"reports.mlflow: {visible(masked(str(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"reports.mlflow: stopped; {sync.GOES_ON}", file=sys.stderr)
        return streams.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m reports.mlflow", description=__doc__, formatter_class=plain)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    made = commands.add_parser("sync", help="bring MLflow up to date with the archive", formatter_class=plain)
    made.description = "Bring MLflow up to date with the archive. Doing so twice changes nothing."
    made.set_defaults(command=sync.run_sync)
    sync.add_arguments(made)
    made = commands.add_parser("ui", help="browse the runs on this machine", formatter_class=plain)
    made.description = "MLflow's user interface, on the loopback, until Ctrl-C."
    made.set_defaults(command=ui.run_ui)
    ui.add_arguments(made)
    return parser


if __name__ == "__main__":
    sys.exit(streams.status("reports.mlflow", lambda: main(sys.argv[1:])))
