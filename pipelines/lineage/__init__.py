"""What a run was made from and what became of it: `grpo trace` and `grpo compare`."""
