"""What is kept: `grpo verify` reads it again, `grpo prune` frees it."""
