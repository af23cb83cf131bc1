"""Why training ends before its last step."""

from typing import Any


class Interrupted(Exception):
    """Asked to stop: `step` is the last one kept."""

    def __init__(self, step: int) -> None:
        super().__init__(f"interrupted: work up to step {step} is kept; run again to resume" if step else "interrupted before anything could be kept")
        self.step = step


class DivergedError(ValueError):
    """Something is not what it must be for the weights to move: raised before they do."""

    def __init__(self, message: str, condition: str = "non_finite") -> None:
        super().__init__(message)
        self.condition = condition
        """What the health monitor calls it."""
        self.rollouts: Any = None
        """Rows of the batch that could not be learned from, where one was drawn."""


class Halted(ValueError):
    """The health monitor ended the training, and its work folder was put back to a checkpoint from before the trouble."""
