"""What is known of the two public notes that this project started from. Their claims are restated elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A published write-up."""

    name: str
    """Its name in this project."""
    told: str
    """What it is about and the setting that it names, by its own account."""
    setting: str
    """The setting that it reports, in a few words."""

    @property
    def about(self) -> str:
        """A paragraph for a reader who has never seen the note."""
        return (
            f"{self.told} No address or author of it is known to us. Its claims are restated here in our own words, "
            "and each is decided from records of scenarios that were written for it."
        )


CHECKPOINT_NOTE = Note(
    "checkpoint attention note",
    'A public note without a title, which tells of a failure "encountered while building Vesper": an attention policy '
    "that is chosen around a checkpointed forward has ended when backward recomputes. It reports torch 2.11.0+cu128, "
    "Python 3.12.10, Windows.",
    "torch 2.11.0+cu128, Python 3.12.10, Windows, on the CPU, float32, one thread",
)

COMPILE_NOTE = Note(
    "DFlash compile-checkpoint note",
    'A public note with the title "The 298 GB Attention Matrix: Debugging the Torch.Compile-Checkpoint Conflict in '
    'Multi-GPU DFlash Training", a write-up of message 9351 of a training log. It reports 8 GPUs of 95 GB and one '
    "process with a thread for each; it does not say which torch or system.",
    "8 GPUs of 95 GB, one process with a thread for each; torch and system not told",
)
