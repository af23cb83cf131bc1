"""GSM8K's real answers, each in ten right and ten wrong spellings, graded by `math_answer`: how many it gets right, and how long that takes.

    python bench/math_grading.py data/raw/gsm8k/train.jsonl [--limit 1000]

Ends with exit status 1 when any right spelling is graded wrong or any wrong one right.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpo_core.rewards.mathematics import decide, final_answer, math_answer, reference_text
from grpo_core.rewards.outcomes import Invalid

SHOWN = 10
RIGHT: Mapping[str, Callable[[int], str]] = {
    "plain, in a box": lambda n: rf"so the answer is \boxed{{{n}}}",
    "thousands, in running text": lambda n: f"The answer is {n:,}.",
    "money": lambda n: rf"\boxed{{{'-' if n < 0 else ''}\${abs(n):,}.00}}",
    "LaTeX thousands": lambda n: rf"\boxed{{{f'{n:,}'.replace(',', '{,}')}}}",
    "fraction": lambda n: rf"\boxed{{\dfrac{{{2 * n}}}{{2}}}}",
    "scientific": lambda n: rf"\boxed{{{n / 1000:.3f} \times 10^{{3}}}}",
    "assignment": lambda n: f"<answer>x = {n}</answer>",
    "unit": lambda n: rf"\boxed{{{n}\text{{ apples}}}}",
    "sum": lambda n: rf"\boxed{{{n - 7} + 7}}",
    "root": lambda n: rf"$\frac{{{n}\sqrt{{8}}}}{{2\sqrt{{2}}}}$",
}
WRONG: Mapping[str, Callable[[int], str]] = {
    "one more": lambda n: rf"\boxed{{{n + 1}}}",
    "one less": lambda n: f"The answer is {n - 1:,}.",
    "other sign": lambda n: rf"\boxed{{{-n if n else 5}}}",
    "digits swapped": lambda n: rf"\boxed{{{swapped(n)}}}",
    "ten times": lambda n: rf"\boxed{{{10 * n if n else 10}}}",
    "a half more": lambda n: rf"\boxed{{{n}.5}}",
    "a cent more": lambda n: rf"\boxed{{\${n}.01}}",
    "listed with another": lambda n: rf"\boxed{{{n}, {n + 1}}}",
    "either sign": lambda n: rf"\boxed{{\pm {n if n else 1}}}",
    "sum, one off": lambda n: rf"\boxed{{{n - 7} + 8}}",
}


def swapped(number: int) -> str:
    """The first two digits that differ, the other way round; one digit more where none do."""
    digits = list(str(number))
    for i in range(len(digits) - 1):
        if digits[i] != digits[i + 1] and digits[i] != "-":
            digits[i], digits[i + 1] = digits[i + 1], digits[i]
            return "".join(digits)
    return f"{number}1"


def answers(path: Path, limit: int) -> list[str]:
    rows = [json.loads(line)["answer"].rpartition("#### ")[2].strip() for line in path.read_text().splitlines()]
    return rows[: limit or None]


def graded(name: str, spellings: Mapping[str, Callable[[int], str]], references: Sequence[str], expected: float) -> bool:
    """Grade every spelling of every answer, say how it went, and whether all went as expected."""
    numbers = [int(reference.replace(",", "")) for reference in references]
    mistakes: list[str] = []
    start, in_cell = time.monotonic(), 0
    for spelling, write in spellings.items():
        texts = [write(number) for number in numbers]
        begun = time.monotonic()
        outcomes = math_answer(texts, references)
        parsed = sum(decide(reference_text(r), final_answer(t, "auto")) is None for r, t in zip(references, texts, strict=True))
        in_cell += parsed
        print(f"  {name}: {spelling:28} {time.monotonic() - begun:7.2f} s, {parsed:6,} of {len(texts):,} by the graders", flush=True)
        wrong = zip(references, texts, outcomes, strict=True)
        mistakes += [f"{r} as {t}: {o.reason if isinstance(o, Invalid) else o}" for r, t, o in wrong if o != expected]
    total = len(spellings) * len(references)
    print(f"{name}: {total - len(mistakes):,} of {total:,} as expected, {in_cell:,} by the graders, {time.monotonic() - start:.1f} s")
    print("\n".join(mistakes[:SHOWN]))
    return not mistakes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="GSM8K's train.jsonl.")
    parser.add_argument("--limit", type=int, default=0, help="Answers taken from the file; 0 takes all.")
    options = parser.parse_args()
    references = answers(options.path, options.limit)
    is_good = [graded("right", RIGHT, references, 1.0), graded("wrong", WRONG, references, 0.0)]
    sys.exit(0 if all(is_good) else 1)


if __name__ == "__main__":
    main()
