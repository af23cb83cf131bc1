"""Why training ends before its last step."""


class Interrupted(Exception):
    """Asked to stop: `step` is the last one kept."""

    def __init__(self, step: int) -> None:
        super().__init__(f"interrupted: work up to step {step} is kept; run again to resume" if step else "interrupted before anything could be kept")
        self.step = step


class DivergedError(ValueError):
    """Something is not a finite number: raised before it reaches the weights."""
