"""What isolated unit tests cost: programs a second, and milliseconds that isolation adds to each.

    python bench/code_rewards.py [HumanEval.jsonl.gz]

With HumanEval's file, its canonical solutions (all must pass) and emptied bodies (none may) are judged in one timed run; without it, 1,000
samples of a small task made here. Takes about half a minute on two cores.
"""

import argparse
import gzip
import json
import statistics
import time
from pathlib import Path

from tqdm import tqdm

from grpo_core.sandbox.isolation import Limits
from grpo_core.sandbox.run_tests import BadTests, Job, Verdict, judge_all
from grpo_core.sandbox.warm_cells import jobs_at_once

SAMPLES = 1000
ANSWERS = ("return sorted(values)[{n} % len(values)]", "return values[0]", "return values[{n}:]", "return sorted(values)[")
"""Right, wrong, wrong and of another type, and no program."""
EMPTY_JOBS = 50


def made_jobs() -> tuple[list[Job], list[bool]]:
    """Samples of a task, and which of them are right."""
    tests = ["assert pick([3, 1, 2]) == sorted([3, 1, 2])[{n} % 3]", "assert pick([5]) == 5", "assert pick(list(range(9))) == {n} % 9"]
    jobs = []
    for n in range(SAMPLES):
        program = f"def pick(values):\n    {ANSWERS[n % len(ANSWERS)].format(n=n)}\n"
        jobs.append(Job([program], "pick", [test.format(n=n) for test in tests]))
    return jobs, [n % len(ANSWERS) == 0 for n in range(SAMPLES)]


def humaneval_jobs(path: Path) -> tuple[list[Job], list[bool]]:
    """Every problem with its canonical solution, then with a body that does nothing."""
    with gzip.open(path, "rt") as file:
        problems = [json.loads(line) for line in file]
    bodies = [problem["canonical_solution"] for problem in problems] + ["    pass\n"] * len(problems)
    jobs = [Job([problem["prompt"] + body], problem["entry_point"], [problem["test"]]) for problem, body in zip(problems * 2, bodies, strict=True)]
    return jobs, [True] * len(problems) + [False] * len(problems)


def is_right(verdict: Verdict | BadTests) -> bool:
    """Whether every test passed."""
    if isinstance(verdict, BadTests):
        raise verdict
    return verdict.passed == verdict.total


def empty_job_seconds(limits: Limits) -> list[float]:
    """How long a program that does nothing takes, one at a time, while others are made ready in its place."""
    job, seconds = Job(["def f(): pass"], "f", ["f()"]), []
    judge_all([job] * 4, limits)
    for _ in tqdm(range(EMPTY_JOBS), desc="empty jobs"):
        started = time.perf_counter()
        judge_all([job], limits)
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("humaneval", type=Path, nargs="?", help="HumanEval.jsonl.gz")
    options = parser.parse_args()
    limits = Limits()
    overhead = statistics.median(empty_job_seconds(limits))
    jobs, expected = humaneval_jobs(options.humaneval) if options.humaneval else made_jobs()
    started = time.perf_counter()
    with tqdm(total=len(jobs), desc="programs") as bar:
        verdicts = judge_all(jobs, limits, on_verdict=lambda: bar.update(1))
    seconds = time.perf_counter() - started
    right = [is_right(verdict) for verdict in verdicts]
    print(f"{sum(right)} of {len(jobs)} programs pass, {sum(expected)} should; {sum(a != b for a, b in zip(right, expected, strict=True))} judged otherwise")
    print(f"{len(jobs) / seconds:.1f} programs a second, {jobs_at_once()} at once ({seconds:.1f} s)")
    print(f"{overhead * 1000:.0f} ms a program that does nothing (median)")
    if right != expected:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
