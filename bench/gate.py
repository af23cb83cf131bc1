"""How often the gate's held-out condition lets through a policy that is no better, and how often one that is: simulated, with prompts of all difficulties.

    python bench/gate.py [--simulations 2000] [--years 2000]      a minute on one core

A prompt is answered rightly with its own chance, drawn from a beta distribution that has many hard and many easy prompts; a policy's sampled answers
are draws of that chance. The condition is `grpo_core.gate.better`'s: Student's interval of the paired difference of mean@k over prompts.
"""

import argparse
from collections.abc import Callable

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]
from tqdm import tqdm

from grpo_core.gate import ALPHA, level

HARD, EASY = 0.6, 0.8
"""Of the beta distribution of chances: mean .43, a quarter of the prompts below .1, a sixth above .9."""
WEEKS = 52
GRID = tuple((prompts, samples) for prompts in (100, 200, 300, 400, 550, 800) for samples in (1, 4, 8))


def chances(generator: np.random.Generator, shape: tuple[int, ...], gain: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Chances of the baseline, and of a policy that is better by `gain` on average: more where there is room, less where there is none."""
    baseline = generator.beta(HARD, EASY, shape)
    room = 4 * baseline * (1 - baseline) + 0.1
    return baseline, np.clip(baseline + gain * room / room.mean(axis=-1, keepdims=True), 0.0, 1.0)


def mean_scores(generator: np.random.Generator, chance: np.ndarray, samples: int) -> np.ndarray:
    return generator.binomial(samples, chance) / samples


def lets_through(difference: np.ndarray, alpha: float) -> np.ndarray:
    """Whether the lower end of the interval at this two-sided level lies above 0; one answer a row of prompts."""
    count = difference.shape[-1]
    half = stdtrit(count - 1, 1 - alpha / 2) * difference.std(axis=-1, ddof=1) / np.sqrt(count)
    return difference.mean(axis=-1) - half > 0


def passing(generator: np.random.Generator, simulations: int, prompts: int, samples: int, gain: float) -> tuple[float, float]:
    """Share of the simulations that pass at the level of the first candidate, and how much better the policy truly was."""
    baseline, policy = chances(generator, (simulations, prompts), gain)
    difference = mean_scores(generator, policy, samples) - mean_scores(generator, baseline, samples)
    return float(lets_through(difference, level(1)).mean()), float((policy - baseline).mean())


def promoting_years(generator: np.random.Generator, years: int, prompts: int, samples: int, rule: Callable[[int], float], *, drawn_once: bool) -> float:
    """Share of years in which one of 52 candidates without merit passes, the held-out prompts being the same all year.

    `drawn_once`: the champion's answers are, too, as the same settings and seed give the same ones; a lucky or unlucky draw then stays all year.
    """
    promoted = 0
    for _ in tqdm(range(years), desc="years", leave=False):
        chance, _ = chances(generator, (prompts,))
        champion = mean_scores(generator, np.broadcast_to(chance, (1 if drawn_once else WEEKS, prompts)), samples)
        difference = mean_scores(generator, np.broadcast_to(chance, (WEEKS, prompts)), samples) - champion
        promoted += any(lets_through(difference[week], rule(week + 1)) for week in range(WEEKS))
    return promoted / years


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--years", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    print("| held-out prompts | samples | equal policies pass | a policy 10 points better passes |\n| ---: | ---: | ---: | ---: |")
    for prompts, samples in GRID:
        equal, _ = passing(generator, options.simulations, prompts, samples, 0.0)
        better, gain = passing(generator, options.simulations, prompts, samples, 0.1)
        print(f"| {prompts} | {samples} | {equal:.1%} | {better:.1%} ({100 * gain:.1f} points) |")
    print("\n| level of the k-th candidate | years with a false promotion | where the champion answers once a year |\n| --- | ---: | ---: |")
    rules: dict[str, Callable[[int], float]] = {"0.05 / k²": level, "0.05 / k": lambda number: ALPHA / number, "0.05": lambda number: ALPHA}
    for name, rule in rules.items():
        shares = [promoting_years(generator, options.years, 550, 4, rule, drawn_once=drawn_once) for drawn_once in (False, True)]
        print(f"| {name} | {shares[0]:.1%} | {shares[1]:.1%} |")


if __name__ == "__main__":
    main()
