"""Progress of the driver: a live bar on a terminal, a line for each scenario elsewhere.

Written to stderr, because results go to stdout.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from experiments.core.text import visible_text

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a sentence to stderr."""
    console.print(escape(visible_text(text, lines=True)), soft_wrap=True)


class Bar:
    """The progress bar of a sweep: done, running, not as expected, time left."""

    def __init__(self, total: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[running]} running"),
            TextColumn("{task.fields[wrong]} not as expected"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._total, self._done, self._wrong = total, done, 0
        self._task: TaskID = self._progress.add_task("sweep", total=total, completed=done, running=0, wrong=0)

    def __enter__(self) -> Self:
        if console.is_terminal:  # elsewhere even a disabled bar ends with an empty line
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if console.is_terminal:
            self._progress.stop()

    def show_running(self, count: int) -> None:
        """Show how many processes are running."""
        self._progress.update(self._task, running=count)

    def count_ended(self) -> None:
        """Count one more process as done."""
        self._done += 1
        self._progress.update(self._task, completed=self._done)

    def count_verdicts(self, scenario: str, counts: dict[str, int]) -> None:
        """Count the verdicts of a finished scenario; `counts` are replays by verdict, empty if none are judged."""
        self._wrong += counts.get("not as expected", 0)
        self._progress.update(self._task, wrong=self._wrong)
        shown = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        if not console.is_terminal:
            say(f"{self._done}/{self._total} {scenario}{': ' if shown else ''}{shown}")
