"""GRPO in plain torch and transformers: read the files in the order data moves (see docs/algorithm.md)."""
