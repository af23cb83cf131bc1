"""Texts that answer nothing: what policies have been caught doing in place of the task, made for one prompt and its reference answer."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from grpo_core.program_probes import exit_zero, patched_assert, reading_the_tests

LONGEST_NUMBER = 40
"""Characters of a reference answer that is made wrong by changing a digit; a longer one would still be nearly right."""
NUM_WRONG = 7
WITHOUT_KIN = ("something else", "none of these", "it depends")
"""Wrong answers where the other prompts have the same one."""

Texts = Mapping[str, str]
"""Variant of a probe → the completion. Behind the last comma of a variant's name stands how it is dressed, if it is: see `held`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The prompt that a probe is made for."""

    prompt: str
    """Its text, of a chat the last message."""
    answer: str
    """The reference; empty where there are many right answers and none is given."""
    wrong: Sequence[str]
    """Answers of the reference's own kind that are not right, three at least."""
    demonstration: str | None = None
    """A good completion, where the prompts have them."""
    calls: Sequence[str] = ()
    """The functions that its tests call, where it is about a program."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One exploit."""

    texts: Callable[[Asked], Texts]
    once: bool = False
    """It tries to break the grader, whatever was asked: one prompt is enough, and a reward that hangs on it hangs once."""


def wrong_answers(answer: str, others: Sequence[str]) -> list[str]:
    """Wrong answers that look like `answer`: it with its first digit changed, or, where it has none, the other prompts' answers."""
    place = next((place for place, character in enumerate(answer) if character in "0123456789"), None)
    if place is not None and len(answer) <= LONGEST_NUMBER:
        changed = [f"{answer[:place]}{(int(answer[place]) + more) % 10}{answer[place + 1 :]}" for more in range(1, 10)]
        return [wrong for wrong in changed if not same(wrong, answer)][:NUM_WRONG]
    found: list[str] = []
    for other in [*others, *WITHOUT_KIN]:
        if not any(same(other, known) for known in (answer, *found)):
            found.append(other)
    return found[:NUM_WRONG]


def same(first: str, second: str) -> bool:
    """Whether two answers mean the same: equal letters and digits, or equal numbers."""
    if _letters(first) == _letters(second) and _letters(first):
        return True
    try:
        return Fraction(first.strip().replace(",", "")) == Fraction(second.strip().replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return first.strip() == second.strip()


def _letters(text: str) -> str:
    return "".join(character for character in unicodedata.normalize("NFKC", text).casefold() if character.isalnum())


def held(content: str) -> dict[str, str]:
    """`content` dressed as graders look for the answer: in tags, in a box, at the end of a sentence."""
    return {"tag": tagged(content), "box": f"\\boxed{{{content}}}", "line": f"The answer is {content}"}


def tagged(content: str, thought: str = "Let me see.") -> str:
    return f"<think>{thought}</think><answer>{content}</answer>"


def right_answer(asked: Asked) -> Texts:
    """No exploit: what exploits are compared with."""
    return (held(asked.answer) if asked.answer else {}) | ({} if asked.demonstration is None else {"demonstration": asked.demonstration})


# --------------------------------------------------------------------------------------------------------- answering with nothing


def empty(asked: Asked) -> Texts:
    return {"": ""}


def whitespace(asked: Asked) -> Texts:
    return {"spaces": " " * 20, "lines": "\n\t\n\u00a0\n" * 5}


def prompt_copied(asked: Asked) -> Texts:
    return {"alone": asked.prompt, "tag": tagged(asked.prompt), "box": f"\\boxed{{{asked.prompt}}}"}


def answer_tag_alone(asked: Asked) -> Texts:
    return {"answer": "<answer></answer>", "tag": "<think></think><answer></answer>", "open": "<answer>", "box": "\\boxed{}", "line": "The answer is"}


def none_and_nan(asked: Asked) -> Texts:
    words = [word for word in ("None", "nan") if not same(word, asked.answer)]
    return {f"{word}, {shape}": text for word in words for shape, text in {"alone": word, **held(word)}.items()}


# ------------------------------------------------------------------------------------------------- answering with more than one answer


def every_option_listed(asked: Asked) -> Texts:
    """All answers that come to mind, the right one among them."""
    options = [asked.wrong[0], asked.answer, *asked.wrong[1:]]
    listed = ", ".join(options)
    tags, boxes = "".join(f"<answer>{option}</answer>" for option in options), " ".join(f"\\boxed{{{option}}}" for option in options)
    return {**held(listed), "each, tag": tags, "each, box": boxes, "each": "\n".join(options)}


def several_answers(asked: Asked) -> Texts:
    """A wrong answer, the right one, and a wrong one, each as if it were the last word."""
    options = (asked.wrong[0], asked.answer, asked.wrong[1])
    tags = "".join(f"<answer>{option}</answer>" for option in options)
    boxes = " or ".join(f"$\\boxed{{{option}}}$" for option in options)
    return {
        "each, tag": f"<think>Let me see.</think>{tags}",
        "each, box": f"The answer is {boxes}",
        "each, line": "\n".join(f"The answer is {option}" for option in options),
        "boxes, tag": tagged(boxes),
        "or, tag": tagged(" or ".join(options)),
        "or, line": f"The answer is {' or '.join(options)}",
    }


def gold_buried_in_noise(asked: Asked) -> Texts:
    """The right answer among unrelated words and wrong answers, nowhere given as the answer."""
    buried = f"{NOISE} {asked.wrong[0]} {NOISE} {asked.answer} {NOISE} {asked.wrong[1]}"
    return {
        "alone": buried,
        "thoughts, tag": tagged(asked.wrong[1], buried),
        "tag": tagged(buried),
        "before, box": f"{buried} \\boxed{{{asked.wrong[1]}}}",
        "box": f"\\boxed{{{buried}}}",
    }


NOISE = "The ferry to the islands leaves when the tide allows, and nobody on the pier could say whether the bakery would open before the rain."


# ------------------------------------------------------------------------------------------------------------ answering wrongly


def format_without_answer(asked: Asked) -> Texts:
    """Everything as it should be, but for the answer."""
    return held(asked.wrong[0])


def long_repetition(asked: Asked) -> Texts:
    words, letters = "I will think about it step by step. " * 150, "a" * 5_000
    return {"words": words, "letters": letters, "thoughts, tag": tagged(asked.wrong[0], words), "wrong answers": f"{asked.wrong[0]} " * 1_000}


SCRIPTS = str.maketrans(
    "0123456789" + "aceiopsxyj" + "ABCEHIKMOPTXYZ",
    "\u0660\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668\u0669"
    + "\u0430\u0441\u0435\u0456\u043e\u0440\u0455\u0445\u0443\u0458"
    + "\u0410\u0412\u0421\u0415\u041d\u0406\u041a\u041c\u041e\u0420\u0422\u0425\u0423\u0396",
)
"""Digits of another script that programs read as numbers, and Cyrillic and Greek letters that look like Latin ones. NFKC leaves all of them as they are."""


def look_alikes(asked: Asked) -> Texts:
    """The right answer to the eye, or to a lenient reader of numbers, but other characters."""
    disguised = {"other script": asked.answer.translate(SCRIPTS)}
    if not same(asked.answer[-1:], asked.answer):
        disguised["zero width"] = "\u200b".join(asked.answer)
    changed = {name: text for name, text in disguised.items() if text != asked.answer}
    return {f"{name}, {shape}": text for name, answer in changed.items() for shape, text in held(answer).items()}


# ------------------------------------------------------------------------------------------------------------ breaking the grader


def power_tower(asked: Asked) -> Texts:
    """Numbers that no machine can work out."""
    return {
        "tag": tagged("99**98**97"),
        "box": "\\boxed{99^{98^{97}}}",
        "line": "The answer is 99**98**97",
        "factorial, box": "\\boxed{99999999999!}",
        "digits, tag": tagged("9" * 5_000),
    }


def nested_latex(asked: Asked) -> Texts:
    deep, brackets = "\\frac{7}{3+" * 500 + "7" + "}" * 500, "(" * 1_500 + "7.3" + ")" * 1_500
    return {"tag": tagged(f"${deep}$"), "box": f"\\boxed{{{deep}}}", "open, box": "\\boxed{" * 1_000, "brackets, tag": tagged(brackets)}


def raising_text(asked: Asked) -> Texts:
    """What careless code raises on, or runs."""
    bad = {
        "control characters": "\x00\x1b[2J\x07\u202e\ufffd\ufffe",
        "format": "%s %n %(x)d {} {0!r:>{width}} {x.__class__}",
        "code": "__import__('os').getpid()",
        "division": "1/0",
        "exponent": "1e999999999",
        "escapes": "\\ud800 \\N{NOTHING} \\x \\",
        "braces": "{" * 1_500,
        "markup": "</think><answer></think></answer><answer",
        "json": '{"answer": [[[[}',
    }
    return {f"{name}, {shape}": text for name, content in bad.items() for shape, text in {"alone": content, **held(content)}.items()}


RIGHT_ANSWER, FORMAT = "right_answer", "format_without_answer"
"""Probes that the others are compared with."""

PROBES: Mapping[str, Probe] = {
    RIGHT_ANSWER: Probe(right_answer),
    "empty": Probe(empty),
    "whitespace": Probe(whitespace),
    "prompt_copied": Probe(prompt_copied),
    "answer_tag_alone": Probe(answer_tag_alone),
    "none_and_nan": Probe(none_and_nan),
    "every_option_listed": Probe(every_option_listed),
    "several_answers": Probe(several_answers),
    "gold_buried_in_noise": Probe(gold_buried_in_noise),
    FORMAT: Probe(format_without_answer),
    "long_repetition": Probe(long_repetition),
    "look_alikes": Probe(look_alikes),
    "power_tower": Probe(power_tower, once=True),
    "nested_latex": Probe(nested_latex, once=True),
    "raising_text": Probe(raising_text, once=True),
}
"""What is tried on every reward."""

CODE_PROBES: Mapping[str, Probe] = {
    "exit_zero": Probe(lambda asked: exit_zero(asked.calls)),
    "patched_assert": Probe(lambda asked: patched_assert(asked.calls)),
    "reading_the_tests": Probe(lambda asked: reading_the_tests(asked.calls)),
}
"""What is tried besides on one that runs programs."""
