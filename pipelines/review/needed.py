"""How many votes tell something: printed before people spend their time."""

from grpo_core.preference import half_width, pairs_needed, votes_needed

PREFERENCES = (0.55, 0.6, 0.65, 0.7, 0.8)
PRECISIONS = (0.15, 0.1, 0.05)
SOUGHT = 0.6
"""A preference worth telling from chance."""


def needed_table() -> str:
    """Votes for a preference to be found, and for an interval to be as narrow as wished."""
    found = [f"  preferred in {preference:.0%} of the pairs  {votes_needed(preference):6,} votes" for preference in PREFERENCES]
    narrow = [f"  to ± {100 * precision:2.0f} points                 {pairs_needed(precision):6,} pairs" for precision in PRECISIONS]
    return "\n".join(
        [
            "To tell a preference from an even one (5 % two-sided, found in 80 % of the cases; each vote of another pair):",
            *found,
            "To know the share, whatever it is (95 % interval):",
            *narrow,
        ]
    )


def outlook(num_pairs: int) -> str:
    """What the pairs at hand can tell."""
    return (
        f"{num_pairs} pairs to judge, some of which check the reviewers. They tell the policy's share to ± {100 * half_width(num_pairs):.0f} points at best;"
        f" telling {SOUGHT:.0%} from an even preference takes {votes_needed(SOUGHT)} (`grpo review --needed`)."
    )
