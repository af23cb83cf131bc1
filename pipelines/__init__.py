"""Everything that runs the lifecycle: Dagster, DVC, MLflow and the `grpo` command."""
