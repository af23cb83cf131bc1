"""The job `promote`: the button in Dagster that does what `grpo promote` does, and fails with the same words."""

from pathlib import Path

import dagster as dg

PROMOTE = "promote"


class Promotion(dg.Config):
    """Which policy becomes the champion, and who answers for it."""

    experiment: str
    by: str
    """Recorded for ever."""
    override: str = ""
    """Why it is promoted though conditions fail or are pending; recorded for ever. Empty: all conditions must hold."""


def promote_job(root: Path) -> dg.JobDefinition:
    """The job for the checkout at `root`."""

    @dg.op(name=PROMOTE, description="Checks the evidence and its conditions, then moves the champion.")
    def make_champion(context: dg.OpExecutionContext, config: Promotion) -> None:
        from pipelines.environment import prepare_environment
        from pipelines.promotion import promote

        prepare_environment(root)
        try:
            done = promote(root, config.experiment, by=config.by, override=config.override or None, on_note=context.log.info)
        except (ValueError, OSError) as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error
        context.log.info(f"{config.experiment!r} is {'already ' if done['already'] else ''}the champion, version {done['version']}")

    @dg.job(name=PROMOTE, description="Make the policy of an experiment the champion, if its promotion report says so.")
    def job() -> None:
        make_champion()

    return job
