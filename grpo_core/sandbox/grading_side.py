"""Inside the grader cell: a library is imported once, and every item is graded by a child process that ends with it.

It is never imported: the host sends it as text (with `receive` and `send` among its names). What a child says is untrusted data; what keeps a
model's text from running code in the child, and so from writing its own grade, is the guard on the host (guard.py) and, once more, `watched`.
"""

import ast
import gc
import importlib
import itertools
import json
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from types import CodeType
from typing import Any, NoReturn

Item = dict[str, Any]
Grade = Callable[[Item, Callable[[], object]], Item]
"""Grades an item; calls its second argument once our own data is read."""

MAX_REPLY = 1 << 16
"""Bytes of a child's verdict that are read."""
OURS = ("/dataclasses.py", "/collections/__init__.py", "/sympy/polys/monomials.py", "/reasoning_gym/arithmetic/bitwise_arithmetic.py")
"""Files that execute text of their own, or of our own data's: none of it comes from a model."""
FORBIDDEN = ("os.exec", "os.fork", "os.posix_spawn", "os.system", "os.kill", "subprocess.", "socket.", "ctypes.", "pty.")
"""Audit events that no grading brings about."""
FUNCTIONS = "Abs acos acosh asin asinh atan atanh cos cosh cot csc exp ln log pi sec sin sinh sqrt tan tanh Symbol Integer Float"
VARIABLES = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") - set("SNOQ")
ALLOWED_NAMES = VARIABLES | set(FUNCTIONS.split())
"""All that text which is evaluated by sympy's parser (five tasks of reasoning-gym) may name."""
DATASETS: dict[tuple[str, str], Any] = {}
"""Dataset objects of reasoning-gym, by task and configuration."""


def grade_alone(grade: Grade, item: Item) -> Item:
    """The verdict on one item, by a child with a processor-time limit of its own: a dictionary with one of the keys
    `score`, `invalid` (the text's doing), `reference` (our data's), `late` (the machine's, or it waits for nothing)."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        be_child(readable, writable, grade, item)
    os.close(writable)
    said, is_late = read_all(readable, time.monotonic() + item["wall_seconds"])
    os.close(readable)
    if is_late:
        end(child)
    _, status = os.waitpid(child, 0)
    end(child)
    return verdict(said, is_late, status, item["cpu_seconds"])


def be_child(readable: int, writable: int, grade: Grade, item: Item) -> NoReturn:
    """Grade, write the verdict and end, whatever happens."""
    try:
        os.setsid()
        os.close(readable)
        os.dup2(writable, 3)
        os.closerange(4, 128)
        whole = math.ceil(item["cpu_seconds"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
        signal.setitimer(signal.ITIMER_PROF, item["cpu_seconds"])
        sys.addaudithook(watched)
        os.write(3, json.dumps(graded(grade, item)).encode())
    finally:
        os._exit(0)


def graded(grade: Grade, item: Item) -> Item:
    """The verdict, with what the text made the library raise."""
    try:
        return grade(item, lambda: os.write(3, b"R"))
    except (MemoryError, RecursionError) as error:
        return {"invalid": f"too much for the grader ({type(error).__name__})"}
    except Exception as error:  # noqa: BLE001  # libraries raise anything when a text makes no sense to them
        return {"invalid": f"the grader could not read it ({type(error).__name__}: {said_by(error)})"}


def said_by(error: Exception) -> str:
    """The first words of what was raised: libraries quote the whole text after them."""
    return (str(error).splitlines() or [""])[0][:120]


def watched(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise when text is executed that is neither a library's own nor made of a few mathematical names, or a process or connection is opened."""
    if event == "exec":
        code, caller = arguments[0], sys._getframe(1).f_code.co_filename
        is_text = code.co_filename.startswith("<") and not code.co_filename.startswith("<frozen")
        is_star_import = code.co_names == ("sympy",) and caller.endswith("/sympy/parsing/sympy_parser.py")
        if is_text and not is_star_import and not caller.endswith(OURS) and not is_harmless(code):
            raise PermissionError("text must not be executed")
    elif event.startswith(FORBIDDEN):
        raise PermissionError(f"{event} is not for grading")


def is_harmless(code: CodeType) -> bool:
    """Whether a compiled text names nothing but mathematics: no attribute, no function of its own, no other global."""
    return set(code.co_names) <= ALLOWED_NAMES and not any(isinstance(constant, CodeType) for constant in code.co_consts)


def read_all(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """What the child wrote until it closed its end (or wrote too much), and whether that took too long."""
    said = b""
    while len(said) < MAX_REPLY:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return said, True
        chunk = os.read(descriptor, 4096)
        if not chunk:
            break
        said += chunk
    return said, False


def end(child: int) -> None:
    """The child and all that it may have started are gone."""
    for kill in (os.killpg, os.kill):
        with suppress(OSError):
            kill(child, signal.SIGKILL)


def verdict(said: bytes, is_late: bool, status: int, cpu_seconds: float) -> Item:
    """What the child said, or why it said nothing. It writes R once our own data is read: before that, a failure is not the text's."""
    with suppress(ValueError):
        found: Item = json.loads(said.removeprefix(b"R"))
        return found
    if is_late:
        return {"late": True}
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number in (signal.SIGPROF, signal.SIGXCPU):
        why = f"took more than {cpu_seconds:g} s of processor time"
    else:
        why = f"crashed the grader ({signal.Signals(number).name})" if number else "ended the grader"
    return {"invalid" if said.startswith(b"R") else "reference": why}


# Mathematics: LaTeX becomes sympy's objects by latex2sympy2_extended's grammar, and math_verify compares them.


def prepare_mathematics(first: Item) -> None:
    """Import the libraries and warm up the grammar: its tables fill with use, and children inherit them."""
    from latex2sympy2_extended import latex2sympy2
    from math_verify import verify

    latex2sympy2.Number = number
    latex2sympy2._Latex2Sympy.parse_number = lambda self, text: number(text.replace(",", ""))
    formulas = [formula(text, True) for text in first["examples"]]
    for one, other in itertools.pairwise(formulas):
        verify(one, other, timeout_seconds=None)


def number(text: str) -> Any:
    """sympy's number of this text; in place of `sympy.Number`, which evaluates a text to read it."""
    import sympy

    return sympy.Integer(int(text)) if text.isdecimal() else sympy.Float(text)


def formula(text: str, is_real: bool) -> Any:
    """The sympy object that `text` stands for. Grammar only: nothing on this way evaluates text."""
    from latex2sympy2_extended.latex2sympy2 import latex2sympy
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex

    plain = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    return latex2sympy(normalize_latex(text, plain), is_real=is_real, convert_degrees=False, normalization_config=None)


def grade_formula(item: Item, reference_is_read: Callable[[], object]) -> Item:
    """Whether `found` stands for the same as `reference`."""
    from math_verify import verify

    try:
        reference = formula(item["reference"], item["is_real"])
    except Exception as error:  # noqa: BLE001  # whatever the library raises, our own data was not readable
        return {"reference": f"{type(error).__name__}: {said_by(error)}"}
    reference_is_read()
    found = formula(item["found"], item["is_real"])
    is_right = verify(reference, found, timeout_seconds=None, float_rounding=6, allow_set_relation_comp=True)
    return {"score": float(is_right and is_near(reference, found))}


def is_near(reference: Any, found: Any) -> bool:
    """False for two numbers that only rounding made equal: 0 and 0.0000001, or 2e-8 and 4e-8. Percentages were compared otherwise."""
    import sympy

    sides = (reference, found)
    if not all(isinstance(side, sympy.Expr) and side.is_number and not side.has(sympy.UnevaluatedExpr) for side in sides):
        return True
    one, other = (side.doit().evalf(30) for side in sides)
    return bool(abs(one - other) <= abs(one) * sympy.Rational(1, 10**4) + sympy.Rational(1, 10**90))


# reasoning-gym: the task's own verifier.


def prepare_reasoning(first: Item) -> None:
    """Import the library, and put right what its verifiers would do with text."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens"):
        importlib.import_module(f"reasoning_gym.{module}").__dict__["eval"] = ast.literal_eval  # they only mean to read a list
    loads = json.loads
    json.loads = lambda text, **options: loads(text, **{"parse_constant": refuse_constant, **options})


def refuse_constant(word: str) -> NoReturn:
    """NaN passes for any number where a verifier looks for a difference."""
    raise ValueError(f"{word} is no number")


def dataset_of(item: Item) -> Any:
    """The dataset object of a task and its configuration, made once."""
    from reasoning_gym.factory import create_dataset

    key = (item["task"], json.dumps(item["config"], sort_keys=True))
    if key not in DATASETS:
        DATASETS[key] = create_dataset(item["task"], **{name: exact(value) for name, value in item["config"].items()})
    return DATASETS[key]


def grade_reasoning(item: Item, reference_is_read: Callable[[], object]) -> Item:
    """The score that the task's verifier gives, and never more than `MENDED` gives."""
    dataset, entry = dataset_of(item), exact(item["entry"])
    reference_is_read()
    try:
        score = dataset.score_answer(item["answer"], entry)
    except Exception as error:  # noqa: BLE001  # verifiers trip over answers in any way
        blame = "reference" if fails_on_its_own(dataset, entry) else "invalid"
        return {blame: f"the verifier raised {type(error).__name__}: {said_by(error)}"}
    if score > 0 and item["task"] in MENDED:
        score = min(score, MENDED[item["task"]](item["answer"], entry))
    return {"score": float(score)} if 0.0 <= score <= 1.0 else {"invalid": f"the verifier gave {score}"}


def fails_on_its_own(dataset: Any, entry: Item) -> bool:
    """Whether the verifier cannot even score the entry's own answer: then it is no word against the model's."""
    try:
        dataset.score_answer(entry["answer"], entry)
    except Exception:  # noqa: BLE001  # whatever it raises, it raises for the right answer too
        return True
    return False


def exact(value: Any) -> Any:
    """The value as it was before JSON (see reasoning_generation.py): lists are marked with what they were."""
    if isinstance(value, dict):
        return {key: exact(held) for key, held in value.items()}
    if isinstance(value, list):
        kinds: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "set": set, "dict": dict}
        return kinds[value[0]]([exact(held) for held in value[1:]])
    return value


def same_words(answer: str, entry: Item) -> float:
    """The verifier asks whether both texts are true in Python: all that are not empty are, "False" too."""
    return float(answer.strip().lower() == entry["answer"].strip().lower())


def same_fraction(answer: str, entry: Item) -> float:
    """The verifier gives full marks to any beginning of the number, such as `0`."""
    return float(abs(Fraction(answer.replace(",", "")) - Fraction(entry["answer"])) <= 1e-4)


def finite_complex(answer: str, entry: Item) -> float:
    """The verifier gives full marks to `nan`."""
    return float("nan" not in answer.lower())


def makes_24(answer: str, entry: Item) -> float:
    """The verifier rounds towards 24 (24.9 is right) and takes any four numbers."""
    from sympy import parse_expr

    used = sorted(int(run) for run in "".join(c if c.isdigit() else " " for c in answer).split())
    return float(used == sorted(entry["metadata"]["numbers"]) and parse_expr(answer) == 24)


MENDED: dict[str, Callable[[str, Item], float]] = {
    "coin_flip": same_fraction,
    "complex_arithmetic": finite_complex,
    "game_of_life_halting": same_words,
    "puzzle24": makes_24,
}
"""Tasks whose verifier in reasoning-gym 0.1.25 gives full marks to wrong answers, and the most that an answer may earn there."""


def serve(receive: Callable[[], Any], send: Callable[[Any], None]) -> NoReturn:
    """Take the kind of grading, prepare, say so; then answer item by item."""
    first = receive()
    is_reasoning = first["kind"] == "reasoning"
    try:
        (prepare_reasoning if is_reasoning else prepare_mathematics)(first)
    except Exception as error:  # noqa: BLE001  # a library that cannot be used here: the host tells what it said
        send({"failed": f"{type(error).__name__}: {said_by(error)}"})
    gc.collect()
    gc.freeze()
    send({"ready": True})
    while True:
        item = receive()
        try:
            if is_reasoning:
                dataset_of(item)
        except Exception as error:  # noqa: BLE001  # the configuration is ours, and what it makes a library raise is told
            send({"reference": f"no dataset: {type(error).__name__}: {said_by(error)}"})
        else:
            send(grade_alone(grade_reasoning if is_reasoning else grade_formula, item))


serve(globals()["receive"], globals()["send"])
