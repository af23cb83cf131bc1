"""A run done again: `grpo reproduce` makes all of it, `grpo replay` its steps from the ledger."""
