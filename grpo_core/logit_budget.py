"""How many rows are scored at once, so that their logits fit in memory. No torch: what a run costs is told before it is imported."""

LOGITS_AT_ONCE = 2**27
"""Most logits [rows, tokens, vocabulary] that are scored at once: half a gigabyte of float32, several times."""


def scored_rows(batch_size: int, longest: int, vocabulary: int) -> int:
    """Rows of a batch that are scored at once: as many as `batch_size`, unless their logits would be more than LOGITS_AT_ONCE numbers."""
    return max(1, min(batch_size, LOGITS_AT_ONCE // (longest * vocabulary)))
