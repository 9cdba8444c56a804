"""What the driver says while it works: a live bar on a terminal, a line for each scenario elsewhere.

On stderr, because results go to stdout.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from experiments.core.text import visible

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A sentence for the person who watches."""
    console.print(escape(visible(text, lines=True)), soft_wrap=True)


class Bar:
    """The one bar of a sweep: done, running, not as expected, time left."""

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
        if console.is_terminal:  # elsewhere even a bar that is switched off ends with an empty line
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if console.is_terminal:
            self._progress.stop()

    def running(self, count: int) -> None:
        self._progress.update(self._task, running=count)

    def ended(self) -> None:
        self._done += 1
        self._progress.update(self._task, completed=self._done)

    def judged(self, scenario: str, counts: dict[str, int]) -> None:
        """All of a scenario is done; `counts` are replays by verdict, none if nobody judges."""
        self._wrong += counts.get("not as expected", 0)
        self._progress.update(self._task, wrong=self._wrong)
        shown = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        if not console.is_terminal:
            say(f"{self._done}/{self._total} {scenario}{': ' if shown else ''}{shown}")
