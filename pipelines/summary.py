"""What a person sees when a run has ended: the evidence, the places, what to do next."""

import json
import os
from collections.abc import Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from assets.alarms import NOT_RECORDED, halts_before, open_conditions, read_alarms
from assets.paths import Paths
from grpo_core.config import RunConfig


def result(paths: Paths, config: RunConfig) -> Group:
    """The held-out evidence, the training's health, where every output lies, and what to do next."""
    return Group(written_evidence(paths), health(paths), Text(), places(paths), Text(), next_steps(paths, config))


def written_evidence(paths: Paths) -> Table:
    """The held-out evidence as it lies on disk."""
    return evidence(json.loads(paths.heldout_summary.read_text(encoding="utf-8")), paths.experiment)


def evidence(numbers: Mapping[str, float], experiment: str) -> Table:
    """Reference and policy on the held-out prompts, with their differences; 95 % intervals in brackets."""
    k = int(numbers["samples_per_prompt"])
    ungraded = int(numbers.get("num_ungraded_prompts", 0))
    aside = f" ({ungraded} more, on which the metric failed, are left out)" if ungraded else ""
    title = f"Held-out evaluation of {experiment!r}: {int(numbers['num_prompts'])} prompts never trained on{aside}, 95 % intervals in brackets"
    table = Table(title=title, title_justify="left")
    for heading in ("", "reference", "policy", "difference (paired)"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    table.add_row(
        "greedy accuracy", _interval(numbers, "reference_accuracy"), _interval(numbers, "policy_accuracy"), _interval(numbers, "difference", sign="+")
    )
    table.add_row(
        f"mean@{k}, temperature {numbers['temperature']:g}",
        f"{numbers['reference_mean_at_k']:.3f}",
        f"{numbers['policy_mean_at_k']:.3f}",
        _interval(numbers, "mean_at_k_difference", sign="+"),
    )
    table.add_row(f"pass@{int(numbers['pass_k'])}", *_pair(numbers, "pass_at_k", ".3f"))
    table.add_row("mean length", *_pair(numbers, "mean_length", ".1f"))
    table.add_row("KL, nats a token", "", f"{numbers['kl_token_mean']:.4f}", "")
    table.add_row("KL, nats a completion", "", f"{numbers['kl_sequence_sum']:.3f}", "")
    return table


def health(paths: Paths) -> Text:
    """Whether an alarm is open, what came before, and how to see more of it."""
    alarms, halts = read_alarms(paths.alarms), halts_before(paths.clock_alarms)
    before = f"; training was {halts}" if halts else ""
    if alarms is None:
        return Text(f"Health: {NOT_RECORDED}{before}")
    conditions = open_conditions(alarms)
    if not conditions:
        return Text(f"Health: no alarm is open{before}")
    see = f"what was seen and what to do: grpo report --experiment {paths.experiment}"
    return Text(f"Health: {', '.join(conditions)} at the end of training{before}; {see}", "bold")


def places(paths: Paths) -> Table:
    """Where each output lies, from the root."""
    table = Table(title="Outputs", title_justify="left", show_header=False, box=None, padding=(0, 2))
    for name, path in (
        ("prompts", paths.prompts),
        ("reference model", paths.reference_checkpoint),
        ("trained policy", paths.grpo_checkpoint),
        ("every completion", paths.rollout_batches),
        ("every reward", paths.rewards),
        ("held-out completions", paths.heldout_completions),
        ("held-out summary", paths.heldout_summary),
        ("pairs for blind review", paths.blind_review_pairs),
        ("their key", paths.blind_review_key),
    ):
        table.add_row(name, str(path.relative_to(paths.root)))
    return table


def next_steps(paths: Paths, config: RunConfig) -> Text:
    """How to look further."""
    prompt = "335+194=" if config.prompts.path == "" else "..."
    activated = os.environ.get("VIRTUAL_ENV") == str(paths.root / ".venv")
    lines = (
        *(() if activated else (("Find the commands", "source .venv/bin/activate"),)),
        ("Open the UIs", "grpo ui"),
        ("Talk to the reference", f"grpo sample {paths.reference_checkpoint.relative_to(paths.root)} '{prompt}'"),
        ("Talk to the policy", f"grpo sample {paths.grpo_checkpoint.relative_to(paths.root)} '{prompt}'"),
        ("Judge pairs blind", "grpo review"),
        ("Vary the run", "dvc exp run -S grpo.group_size=4"),
    )
    width = max(len(name) for name, _ in lines)
    return Text("\n".join(f"  {name:<{width}}  {text}" for name, text in lines))


def _interval(numbers: Mapping[str, float], key: str, sign: str = "") -> str:
    return f"{numbers[key]:{sign}.3f} [{numbers[f'{key}_low']:{sign}.3f}, {numbers[f'{key}_high']:{sign}.3f}]"


def _pair(numbers: Mapping[str, float], key: str, spec: str) -> tuple[str, str, str]:
    reference, policy = numbers[f"reference_{key}"], numbers[f"policy_{key}"]
    return f"{reference:{spec}}", f"{policy:{spec}}", f"{policy - reference:+{spec}}"
