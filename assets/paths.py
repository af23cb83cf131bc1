"""Where every noun lies on disk, relative to the repository root. dvc.yaml names the same paths (a test compares them)."""

from dataclasses import dataclass
from pathlib import Path

SHARED = ("run_config", "prompts", "sft_checkpoint", "reference_checkpoint", "comparison_report")
"""Made once, for all experiments."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of one experiment under `root`; the nouns of `SHARED` are the same for all experiments."""

    root: Path
    experiment: str = "default"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def run_config(self) -> Path:
        """Folder of checked configuration, one JSON a section: shared sections here, the others in a folder per experiment."""
        return self.data / "run_config"

    @property
    def prompts(self) -> Path:
        return self.data / "prompts" / "prompts.parquet"

    @property
    def sft_checkpoint(self) -> Path:
        return self.data / "sft_checkpoint"

    @property
    def reference_checkpoint(self) -> Path:
        return self.data / "reference_checkpoint"

    @property
    def rollout_batches(self) -> Path:
        return self.data / "rollout_batches" / self.experiment / "rollouts.parquet"

    @property
    def select_completions(self) -> Path:
        """Every answer of the evaluations on the `select` split during training."""
        return self.data / "rollout_batches" / self.experiment / "select_completions.parquet"

    @property
    def rewards(self) -> Path:
        return self.data / "rewards" / self.experiment / "rewards.parquet"

    @property
    def exploits(self) -> Path:
        """What the exploit battery tried before training, and what it earned."""
        return self.data / "rewards" / self.experiment / "exploits.parquet"

    @property
    def alarms(self) -> Path:
        """What the health monitor said of the training."""
        return self.data / "health" / self.experiment / "alarms.json"

    @property
    def clock_alarms(self) -> Path:
        """What it said of the clock's figures: untracked, as they differ from run to run."""
        return self.provenance("grpo_checkpoint") / "clock_alarms.json"

    @property
    def grpo_checkpoint(self) -> Path:
        return self.data / "grpo_checkpoint" / self.experiment

    @property
    def heldout_completions(self) -> Path:
        return self.data / "heldout_eval" / self.experiment / "completions.parquet"

    @property
    def heldout_summary(self) -> Path:
        return self.data / "heldout_eval" / self.experiment / "summary.json"

    @property
    def blind_review_pairs(self) -> Path:
        """What reviewers see: nothing in it tells the sides apart."""
        return self.data / "blind_review_set" / self.experiment / "pairs.parquet"

    @property
    def blind_review_key(self) -> Path:
        """Which side is which; only the verdict reads it."""
        return self.data / "blind_review_key" / self.experiment / "key.parquet"

    @property
    def blind_review_votes(self) -> Path:
        """What people chose, kept in Git: the verdict's input. It is not there before anybody has voted."""
        return self.data / "blind_review_votes" / f"{self.experiment}.parquet"

    @property
    def votes_database(self) -> Path:
        """Where the review page writes each vote first."""
        return self.blind_review_votes.with_suffix(".votes.sqlite")

    @property
    def blind_review_verdict(self) -> Path:
        """What the votes say."""
        return self.data / "blind_review_verdict" / self.experiment / "verdict.json"

    @property
    def blind_review_judged(self) -> Path:
        """Every pair with what was voted of it and which side was which."""
        return self.data / "blind_review_verdict" / self.experiment / "judged.parquet"

    @property
    def champion(self) -> Path:
        """Folder of all that is kept of champions."""
        return self.data / "champion"

    @property
    def champion_record(self) -> Path:
        """Who the champion is, and by whose decision; kept in Git."""
        return self.champion / "champion.json"

    @property
    def champion_model(self) -> Path:
        """The champion's checkpoint, which `dvc add` versions."""
        return self.champion / "model"

    @property
    def champion_history(self) -> Path:
        """Every promotion there ever was; kept in Git."""
        return self.champion / "history.jsonl"

    @property
    def looks(self) -> Path:
        """Every policy whose held-out answers were ever looked at; kept in Git."""
        return self.champion / "looks.jsonl"

    @property
    def champion_completions(self) -> Path:
        """The champion's answers to the held-out prompts, with the experiment's settings."""
        return self.data / "champion_eval" / self.experiment / "completions.parquet"

    @property
    def promotion_report(self) -> Path:
        """Whether the policy may become the champion, condition by condition."""
        return self.data / "promotion_report" / self.experiment / "report.json"

    @property
    def comparison_report(self) -> Path:
        """The experiments compared with each other: which setting does better, and which to take."""
        return self.data / "comparison_report" / "report.json"

    def validation(self, noun: str) -> Path:
        """Outcome of the noun's contract."""
        folder = self.data / "validation"
        return folder / f"{noun}.json" if noun in SHARED else folder / self.experiment / f"{noun}.json"

    def provenance(self, noun: str) -> Path:
        """Untracked folder of records (commit, versions, machine, what came in and out) and of wall-clock figures: never hashed."""
        folder = self.root / ".work" / "provenance"
        return folder / noun if noun in SHARED else folder / self.experiment / noun

    @property
    def work(self) -> Path:
        """Untracked folder of resume state and records."""
        return self.root / ".work"
