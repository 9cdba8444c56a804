"""The view in MLflow from the command line.

    python -m reports.mlflow sync [--sweep ID | --all]    bring MLflow up to date with the archive
    python -m reports.mlflow ui [--port 5000]             browse it on this machine

Exit status: 0 done, 2 could not, 130 interrupted.
"""

from __future__ import annotations

from experiments.core import streams

if __name__ == "__main__":
    streams.handle_early_interrupt("reports.mlflow: stopped; nothing was begun yet")

import argparse
import sys
from collections.abc import Callable, Sequence

from experiments.core.masking import mask_secrets
from experiments.core.text import visible_text
from reports.mlflow import sync, ui
from store.errors import ArchiveError

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the exit status."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    command: Command = options.command
    try:
        return command(options)
    except ArchiveError as error:
        print(f"reports.mlflow: {visible_text(mask_secrets(str(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"reports.mlflow: stopped; {sync.GOES_ON}", file=sys.stderr)
        return streams.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m reports.mlflow", description=__doc__, formatter_class=plain)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = commands.add_parser("sync", help="bring MLflow up to date with the archive", formatter_class=plain)
    command.description = "Bring MLflow up to date with the archive. Doing so twice changes nothing."
    command.set_defaults(command=sync.run_sync)
    sync.add_arguments(command)
    command = commands.add_parser("ui", help="browse the runs on this machine", formatter_class=plain)
    command.description = "MLflow's user interface, on the loopback, until Ctrl-C."
    command.set_defaults(command=ui.run_ui)
    ui.add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(streams.run_program("reports.mlflow", lambda: main(sys.argv[1:])))
