"""Commands of `grpo`, a file each; pipelines/cli.py puts them together."""
