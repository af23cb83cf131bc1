"""Grading with libraries that may hang, crash or be talked into running text: verdicts of the grader cells, one killable child an item.

What was read of the libraries (math-verify 0.9.0, latex2sympy2_extended 1.11.0, sympy 1.14.0, reasoning-gym 0.1.25), looking for places
where text is executed:

- `math_verify.parse` tries a regular expression of numbers and operators last, and gives what it finds to sympy's `parse_expr`, which is
  Python's `eval`. Its LaTeX branch is a grammar (ANTLR) that builds sympy objects. We find the answer ourselves and use the grammar alone.
- `latex2sympy` calls `parse_expr` on the values of variables that the caller hands over; we hand over none.
- `sympify`, and with it any sympy function given a `str`, is `eval`. The grammar makes numbers and symbols, never strings, out of text.
- `solve`, `simplify` and numeric roots can reach `lambdify` (`exec` of printed expressions) and a code template of `polys.monomials`.
- reasoning-gym evaluates answers with `parse_expr` (simple_integration, intermediate_integration, polynomial_multiplication, countdown,
  puzzle24) and with `eval` (binary_matrix, spiral_matrix, string_insertion, n_queens).

So a text meets three things in turn: the guard (guard.py), which refuses it unless it is made of allowed characters, commands and names;
the child's audit hook (grading_side.py), which lets no text be executed that names anything but a few functions; and the sandbox. The
sandbox alone would keep the machine safe but not the grade: code that runs in the child could write its own verdict.
"""

import atexit
import importlib.util
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from grpo_core.rewards.outcomes import RewardError
from grpo_core.sandbox.cell import Cell, CellDied, CellFlooded, CellTimeout
from grpo_core.sandbox.isolation import Limits
from grpo_core.sandbox.reasons import plain

Kind = Literal["mathematics", "reasoning"]
LIBRARIES: dict[Kind, tuple[str, ...]] = {"mathematics": ("math_verify", "latex2sympy2_extended", "sympy"), "reasoning": ("reasoning_gym", "sympy", "numpy")}
EXAMPLES = (r"\frac{1}{2}", r"2\sqrt{3}+x^{2}", r"(1,2]", r"x=5", r"\{1,2\}", r"-3,7", r"\frac{x+1}{x-1}", r"1<x\le 3", r"2^{10}", r"\sin(x)-\pi", r"x=5, y=7")
"""Formulas that warm up the grammar."""
SURELY_RIGHT: dict[Kind, dict[str, Any]] = {
    "mathematics": {"reference": "2", "found": "1+1", "is_real": True},
    "reasoning": {"task": "chain_sum", "config": {}, "answer": "2", "entry": {"question": "1 + 1 = ?", "answer": "2", "metadata": {}}},
}
LOST = (CellTimeout, CellDied, CellFlooded)
MAX_CELLS = 4
IMPORT_SECONDS = 120.0
"""How long a cell may take to import its library on a busy machine."""
WALL_FACTOR = 20
"""Wall-clock seconds that a child is given for one of processor time: machine load decides nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one item: a score, or why there is none."""

    score: float | None
    reason: str = ""
    is_our_data: bool = False
    """It was the reference, not the model's text, that could not be used."""


@dataclass(slots=True)
class Graders:
    """Cells that grade with one library, a thread each; started when first needed, replaced when one is lost, ended with the process."""

    kind: Kind
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(min(MAX_CELLS, len(os.sched_getaffinity(0))), "grader"))
    own: threading.local = field(default_factory=threading.local)
    cells: set[Cell] = field(default_factory=set)

    def grade(self, items: Sequence[Mapping[str, Any]], cpu_seconds: float) -> list[Verdict]:
        """A verdict on every item. One that hangs, or takes its cell along, is tried again when the others are done, alone in a fresh cell."""
        limited = [{**item, "cpu_seconds": cpu_seconds, "wall_seconds": cpu_seconds * WALL_FACTOR} for item in items]
        verdicts = list(self.threads.map(self._try, limited))
        return [verdict or self.threads.submit(self._try_again, item).result() for verdict, item in zip(verdicts, limited, strict=True)]

    def close(self) -> None:
        """All cells are gone."""
        for cell in list(self.cells):
            self._drop(cell)

    def _try(self, item: Mapping[str, Any]) -> Verdict | None:
        """None: it was late, or the cell was lost, whoever's fault that was."""
        try:
            said = self._ask(item)
        except LOST:
            self._drop(self.own.cell)
            return None
        return None if "late" in said else _verdict(said)

    def _try_again(self, item: Mapping[str, Any]) -> Verdict:
        if (cell := getattr(self.own, "cell", None)) is not None:
            self._drop(cell)
        try:
            said = self._ask(item)
        except LOST as lost:
            self._drop(self.own.cell)
            self._prove()
            return Verdict(None, f"the grader was lost twice ({lost})")
        return Verdict(None, f"no verdict within {item['wall_seconds']:g} s, twice") if "late" in said else _verdict(said)

    def _ask(self, item: Mapping[str, Any]) -> dict[str, Any]:
        cell = getattr(self.own, "cell", None)
        if cell is None or cell not in self.cells:
            cell = self.own.cell = self._start()
        cell.send(item)
        said = cell.receive(item["wall_seconds"] + 10)
        if not isinstance(said, dict):
            raise CellFlooded(f"said {str(said)[:80]}")
        return said

    def _prove(self) -> None:
        """Nothing, if a fresh cell grades an answer that is surely right: then it was the text that took cells along. Else RuntimeError."""
        try:
            said = self._ask({**SURELY_RIGHT[self.kind], "cpu_seconds": 60.0, "wall_seconds": 60.0 * WALL_FACTOR})
        except LOST as lost:
            raise RuntimeError(f"graders of {self.kind} do not work: one was lost over an answer that is surely right ({lost})") from lost
        if said != {"score": 1.0}:
            raise RuntimeError(f"graders of {self.kind} do not work: of an answer that is surely right one said {said}")

    def _start(self) -> Cell:
        """A cell that has its library imported; RuntimeError when two in a row fail to."""
        try:
            return self._started()
        except LOST:  # perhaps killed from outside
            try:
                return self._started()
            except LOST as lost:
                raise RuntimeError(f"graders of {self.kind} cannot start: {lost}") from lost

    def _started(self) -> Cell:
        limits = Limits(cpu_seconds=24 * 3600, wall_seconds=24 * 3600, memory_bytes=2**30)
        cell = Cell.start(side(), limits, packages=library_folders(self.kind), may_fork=True)
        self.cells.add(cell)
        try:
            cell.send({"kind": self.kind, "examples": EXAMPLES})
            said = cell.receive(IMPORT_SECONDS)
        except BaseException:
            self._drop(cell)
            raise
        if said != {"ready": True}:
            self._drop(cell)
            raise RuntimeError(
                f"graders of {self.kind} cannot start: {str(said)[:300]}; install the versions of {' and '.join(LIBRARIES[self.kind])} pinned here"
            )
        return cell

    def _drop(self, cell: Cell) -> None:
        """The cell is gone; whoever comes second finds nothing to do."""
        with suppress(KeyError, ProcessLookupError, ChildProcessError):
            self.cells.remove(cell)
            cell.kill()


def _verdict(said: Mapping[str, Any]) -> Verdict:
    if isinstance(score := said.get("score"), float):
        return Verdict(score)
    return Verdict(None, plain(str(said.get("reference") or said.get("invalid"))), is_our_data="reference" in said)


def library_folders(kind: Kind) -> list[Path]:
    """The folders of installed packages in which the libraries lie; RewardError when one is not installed."""
    found = {name: importlib.util.find_spec(name) for name in LIBRARIES[kind]}
    missing = [name for name, spec in found.items() if spec is None or spec.origin is None]
    if missing:
        package = "math-verify" if kind == "mathematics" else "reasoning-gym"
        raise RewardError(f"grading {kind} needs {' and '.join(missing)}, not installed here: pip install {package}")
    return list(dict.fromkeys(Path(spec.origin).parent.parent for spec in found.values() if spec and spec.origin))


@cache
def side() -> str:
    """The program that a grader cell runs."""
    return Path(__file__).with_name("grading_side.py").read_text(encoding="utf-8")


def graders(kind: Kind) -> Graders:
    """The process's graders of this kind."""
    return _graders(kind, os.getpid())


@cache
def _graders(kind: Kind, process_id: int) -> Graders:
    """A process that was forked off has none of its parent's threads, so it has graders of its own."""
    made = Graders(kind)
    atexit.register(made.close)
    return made
