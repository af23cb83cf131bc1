"""The metrics of a run so far, as rules ask about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class History:
    """One mapping of metrics a step, oldest first; a metric may be missing from any of them."""

    steps: list[int] = field(default_factory=list)
    metrics: list[Mapping[str, float]] = field(default_factory=list)
    _columns: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    _means: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)
        self.metrics.append(metrics)
        for name, value in metrics.items():
            self._columns.setdefault(name, []).append((step, value))

    @property
    def step(self) -> int:
        """The newest step."""
        return self.steps[-1]

    def now(self, name: str) -> float | None:
        """The metric at the newest step."""
        return self.metrics[-1].get(name)

    def before(self, name: str) -> float | None:
        """The metric one step earlier."""
        return self.metrics[-2].get(name) if len(self.metrics) > 1 else None

    def last(self, name: str, count: int, *, ending: int = 0) -> list[float]:
        """The metric over `count` steps, the last of them `ending` steps before the newest; steps that lack it are left out."""
        stop = len(self.metrics) - ending
        return [metrics[name] for metrics in self.metrics[max(0, stop - count) : max(0, stop)] if name in metrics]

    def series(self, name: str) -> Sequence[tuple[int, float]]:
        """(step, value) wherever the metric is."""
        return self._columns.get(name, ())

    def window_means(self, name: str, window: int) -> Sequence[float]:
        """The metric's mean over every `window` successive values, oldest first; each is worked out once."""
        means, values = self._means.setdefault((name, window), []), self.series(name)
        for start in range(len(means), len(values) - window + 1):
            means.append(mean([value for _, value in values[start : start + window]]))
        return means

    def held(self, count: int, name: str, *, above: float) -> bool:
        """Whether the metric was above this at each of the `count` newest steps."""
        values = self.last(name, count)
        return len(values) == count and min(values) > above


def mean(values: Sequence[float]) -> float:
    """The mean of one value or more."""
    return sum(values) / len(values)


def median(values: Sequence[float]) -> float:
    """The middle of one value or more (the lower one of two)."""
    return sorted(values)[(len(values) - 1) // 2]
