"""A run by any of its names: what its outputs were made from and how, and where their bytes are now.

Looking one up on this machine imports none of MLflow, DVC, Dagster and torch. Records chain by content: a record's `deps` are the hashes
of what it read, and the records whose `outs` those are say how that was made.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from assets.paths import Paths
from grpo_core.checkpoint import MANIFEST, file_sha256
from grpo_core.requirements import ConfigError
from pipelines.lock import Entry, file_md5, folder_md5, read_lock
from pipelines.params import load_params
from pipelines.records.dvc_cache import cached_listing, object_path
from pipelines.records.files import UNKNOWN, Record, read_records, recorded_experiments

UPSTREAM = ("run_config", "prompts", "sft_checkpoint", "reference_checkpoint")
"""Nouns that a training reads."""
TRAINING, EVALUATION, REVIEW, VERDICT = "grpo_checkpoint", "heldout_eval", "blind_review_set", "blind_review_verdict"
GATE = ("champion_eval", "promotion_report")
"""What a policy is held against, and what came of it: of the champion and the ledger of the day, so no part of a run."""
DOWNSTREAM = ((EVALUATION, TRAINING), (REVIEW, EVALUATION), (VERDICT, REVIEW))
"""What is made from a training, each with what it is made from."""
RUN_ID = re.compile(r"[0-9a-f]{6,32}")
"""A run key or an MLflow run id, or enough of its beginning."""


class RunError(ValueError):
    """A run, or a file of it, that cannot be found."""


@dataclass(frozen=True, slots=True)
class Run:
    """A training with what is known of what it was made from and of its evaluation."""

    root: Path
    experiment: str
    run_key: str
    records: Mapping[str, Record]
    """Noun → how it was made, for those of run_config, prompts, sft_checkpoint, reference_checkpoint, grpo_checkpoint, heldout_eval,
    blind_review_set and blind_review_verdict that are known. Every record has every field, `None` or empty where it is not known."""
    mlflow_run_id: str | None
    """None when the run was found without asking MLflow."""

    def file(self, path: str) -> Path:
        """Where the bytes of an output (`data/...`, also a file in a folder) are now: in the workspace, else in DVC's cache.

        All of them are read and hashed. Raises `RunError` when neither has them, and when they were altered where they should be.
        """
        md5 = self.md5(path)
        workspace, cached = self.root / path, object_path(self.root, md5)
        is_folder = md5.endswith(".dir")
        if workspace.is_dir() if is_folder else workspace.is_file():
            if (folder_md5 if is_folder else file_md5)(workspace) == md5:
                return workspace
            if self._is_current(path):
                remedy = "`dvc checkout` brings it back" if cached.is_file() else self._remedy(path)
                raise RunError(f"{path} of {self.label()} was altered (its md5 is not {md5}): delete it, then {remedy}")
        if is_folder:
            raise RunError(f"{path} of {self.label()} is a folder that is not in the workspace: ask for a file in it, or check it out with DVC")
        if not cached.is_file():
            raise RunError(f"{path} of {self.label()} (md5 {md5}) is neither in the workspace nor in DVC's cache: {self._remedy(path)}")
        if file_md5(cached) != md5:
            raise RunError(f"{path} of {self.label()} was altered in DVC's cache: delete {cached}, then {self._remedy(path)}")
        return cached

    def md5(self, path: str) -> str:
        """The hash under which DVC knows a dependency or an output of this run, also of a file in a folder; raises `RunError` when it has no such file."""
        known = self._hashes()
        if path in known:
            return known[path]
        for folder in map(str, PurePosixPath(path).parents):
            if folder in known:
                listing = cached_listing(self.root, known[folder])
                if listing is None:
                    raise RunError(f"what {folder} of {self.label()} held is not in DVC's cache: {self._remedy(folder)}")
                name = str(PurePosixPath(path).relative_to(folder))
                if name in listing:
                    return listing[name]
                raise RunError(f"{folder} of {self.label()} has no file {name!r}; it has {', '.join(sorted(listing))}")
        raise RunError(f"{self.label()} has no output {path!r} that is known here; known are {', '.join(sorted(self._outs())) or 'none'}")

    def json(self, path: str) -> dict[str, Any]:
        """A JSON file of the run. Records hold the held-out summary, which Git keeps and DVC's cache does not, so an earlier run's is there as well."""
        for record in self.records.values():
            if path in record["metrics"]:
                return dict(record["metrics"][path])
        return dict(json.loads(self.file(path).read_bytes()))

    def label(self) -> str:
        """Short name for tables and messages."""
        return f"{self.experiment} ({self.run_key[:8]})"

    def _hashes(self) -> dict[str, str]:
        """Path → md5 of all that the records name."""
        groups = ("deps", "files", "outs")
        return {path: md5 for group in groups for record in self.records.values() for path, md5 in record[group].items()}

    def _outs(self) -> dict[str, str]:
        return {path: md5 for record in self.records.values() for path, md5 in record["outs"].items()}

    def _is_current(self, path: str) -> bool:
        """Whether dvc.lock names for the output, or the folder it is in, what this run has there."""
        outs = {name: md5 for entry in read_lock(self.root).values() for name, md5 in entry.outs.items()}
        own = self._hashes()
        return any(name in outs and outs[name] == own.get(name) for name in (path, *map(str, PurePosixPath(path).parents)))

    def _remedy(self, path: str) -> str:
        if self._is_current(path):
            return "`dvc pull` brings it from a remote, and `dvc repro` makes it again"
        return f"fetch it from a DVC remote that has it, or make the run again (`grpo reproduce {self.mlflow_run_id or self.experiment}`)"


def find_run(root: Path, name: str) -> Run:
    """The run that `name` stands for: an experiment, a checkpoint folder, a run key, an MLflow run id (of both the beginning is enough), or MODEL@ALIAS.

    An experiment is what lies in data/grpo_checkpoint now. A folder may be a copy anywhere: its manifest tells whose it is. Raises `RunError`
    that lists what there is.
    """
    lock = read_lock(root)
    if name in trained_experiments(root, lock):
        return _of_experiment(root, name, lock)
    for folder in (Path(name), root / name):
        if (folder / MANIFEST).is_file():
            return _of_folder(root, folder, lock)
    if Path(name).is_dir():
        raise RunError(f"{name} has no {MANIFEST}: it is no checkpoint folder")
    if "@" in name:
        from pipelines.records.recorded_runs import run_id_of_alias

        return _of_mlflow(root, run_id_of_alias(root, name), lock)
    if keyed := _of_key(root, name, lock):
        return keyed
    if RUN_ID.fullmatch(name):
        from pipelines.records.recorded_runs import complete_run_id

        return _of_mlflow(root, complete_run_id(root, name), lock)
    raise RunError(_unknown(root, name, trained_experiments(root, lock)))


def trained_experiments(root: Path, lock: Mapping[str, Entry]) -> list[str]:
    """Experiments whose policy lies in data/grpo_checkpoint or is named by dvc.lock."""
    present = {manifest.parent.name for manifest in (root / "data" / TRAINING).glob(f"*/{MANIFEST}") if not manifest.parent.name.startswith(".")}
    return sorted(present | {target.partition("@")[2] for target in lock if target.startswith(f"{TRAINING}@")})


def related(root: Path, record: Record) -> dict[str, Record]:
    """Noun → record of all that the record's outputs were made from, and of what was made from them, as far as it was made on this machine."""
    return _related(root, {record["noun"]: record}, read_lock(root))


def _of_experiment(root: Path, experiment: str, lock: Mapping[str, Entry]) -> Run:
    """The run whose policy the experiment's folder holds now, or held before it was removed."""
    paths = Paths(root, experiment)
    manifest = paths.grpo_checkpoint / MANIFEST
    if manifest.is_file():
        return _of_manifest(root, manifest, experiment, lock)
    entry = lock[f"{TRAINING}@{experiment}"]
    anchor = next((record for record in read_records(paths, TRAINING) if record["outs"] == entry.outs), None)
    if anchor is None:
        raise RunError(f"the checkpoint of experiment {experiment!r} is not in {manifest.parent}: `dvc checkout` or `dvc pull` brings it back")
    return _run(root, _related(root, {TRAINING: anchor}, lock))


def _of_key(root: Path, name: str, lock: Mapping[str, Entry]) -> Run | None:
    """The recorded run whose key begins with `name` (6 digits or more); None when none does. Raises `RunError` when several do."""
    if not RUN_ID.fullmatch(name):
        return None
    records = [record for experiment in recorded_experiments(root) for record in read_records(Paths(root, experiment), TRAINING)]
    matching = [record for record in records if str(record.get("run_key")).startswith(name)]
    if len(keys := {str(record["run_key"]) for record in matching}) > 1:
        raise RunError(f"{name!r} is the beginning of {len(keys)} run keys: write more of {', '.join(sorted(keys))}")
    return _run(root, _related(root, {TRAINING: _preferred(matching, lock)}, lock)) if matching else None


def _of_folder(root: Path, folder: Path, lock: Mapping[str, Entry]) -> Run:
    """The run that made a checkpoint folder, wherever it was copied to."""
    folder = folder.resolve()
    own = folder.parent == (root / "data" / TRAINING).resolve()
    return _of_manifest(root, folder / MANIFEST, folder.name if own else None, lock)


def _of_manifest(root: Path, manifest: Path, experiment: str | None, lock: Mapping[str, Entry]) -> Run:
    """The run that wrote the manifest, by its sha256: first in the records of this machine, then in MLflow's, last as far as dvc.lock knows it."""
    facts, sha256 = _read_manifest(manifest), file_sha256(manifest)
    for name in [experiment] if experiment else recorded_experiments(root):
        matching = [record for record in read_records(Paths(root, name), TRAINING) if record.get("manifest_sha256") == sha256]
        if matching:
            return _run(root, _related(root, {TRAINING: _preferred(matching, lock)}, lock))
    entry = lock.get(f"{TRAINING}@{experiment}")
    try:
        if logged := _logged(root, facts["run_key"], sha256, experiment, lock):
            return logged
    except RunError:
        if entry is None:
            raise
    if experiment is None or entry is None:
        raise RunError(f"no run recorded here or in MLflow made {manifest.parent} (run key {facts['run_key']}): work in the checkout that it was trained in")
    hashes = {"noun": TRAINING, "experiment": experiment, "deps": _data(entry.deps), "outs": entry.outs, "run_key": facts["run_key"], "manifest_sha256": sha256}
    return _run(root, _related(root, {TRAINING: {**UNKNOWN, **hashes}}, lock))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(f"{path} is not JSON ({error}): the checkpoint is damaged; restore it with `dvc checkout`") from error
    if facts.get("noun", TRAINING) != TRAINING or "run_key" not in facts or "files" not in facts:
        raise RunError(f"{path.parent} is a {facts.get('noun', 'folder')}, not a checkpoint that GRPO trained: name one of data/{TRAINING}")
    return dict(facts)


def _logged(root: Path, run_key: str, sha256: str, experiment: str | None, lock: Mapping[str, Entry]) -> Run | None:
    """The run that MLflow holds the records of; None when it has none of this very checkpoint, or is not to be asked."""
    from pipelines.records.recorded_runs import is_there, logged_records, run_ids_of_key

    if not is_there(root):
        return None
    ids = [run_id for run_id in run_ids_of_key(root, run_key, experiment) if logged_records(root, run_id).get(TRAINING, {}).get("manifest_sha256") == sha256]
    return _of_mlflow(root, ids[0], lock) if ids else None


def _of_mlflow(root: Path, run_id: str, lock: Mapping[str, Entry]) -> Run:
    """The run with this MLflow id, from the records among its artifacts."""
    from pipelines.records.recorded_runs import logged_records

    records = {noun: {**UNKNOWN, **record} for noun, record in logged_records(root, run_id).items()}
    if TRAINING not in records:
        raise RunError(f"MLflow's run {run_id} holds no record of a training: it has not finished, or was trained before there were records")
    # A run that was extended keeps the evaluation of its shorter self until it is evaluated again.
    for noun, maker in DOWNSTREAM:
        if noun in records and not (maker in records and _agree(_made(records[maker]), records[noun]["deps"])):
            del records[noun]
    return _run(root, _related(root, records, lock), run_id)


def _run(root: Path, records: Mapping[str, Record], mlflow_run_id: str | None = None) -> Run:
    anchor = records[TRAINING]
    return Run(root, str(anchor["experiment"]), str(anchor["run_key"]), records, mlflow_run_id)


def _related(root: Path, records: Mapping[str, Record], lock: Mapping[str, Entry]) -> dict[str, Record]:
    """The records with those of this machine that chain with them: hashes that one read and the other wrote are equal."""
    found = dict(records)
    experiment = next((record["experiment"] for record in records.values() if record["experiment"]), "default")
    paths = Paths(root, experiment)

    def add(noun: str, matching: Iterable[Record]) -> None:
        if noun not in found and (candidates := list(matching)):
            found[noun] = _preferred(candidates, lock)

    for noun, reader in (*((maker, made) for made, maker in reversed(DOWNSTREAM)), *((noun, TRAINING) for noun in UPSTREAM)):
        if reader in found:
            add(noun, (record for record in read_records(paths, noun) if _agree(_made(record), found[reader]["deps"])))
    for noun, maker in DOWNSTREAM:
        if maker in found:
            add(noun, (record for record in read_records(paths, noun) if _agree(_made(found[maker]), record["deps"])))
    return {noun: found[noun] for noun in (*UPSTREAM, TRAINING, *(noun for noun, _ in DOWNSTREAM)) if noun in found}


def _preferred(records: list[Record], lock: Mapping[str, Entry]) -> Record:
    """Of records that fit equally well (the newest first), the one of dvc.lock's outputs, else the newest."""
    current = [entry.outs for entry in lock.values()]
    return next((record for record in records if record["outs"] in current), records[0])


def _made(record: Record) -> dict[str, str]:
    """Path → md5 of the outputs and of the files in them."""
    return {**record["files"], **record["outs"]}


def _agree(made: Mapping[str, str], read: Mapping[str, str]) -> bool:
    """Whether something that was made was read, all of it as it was made."""
    shared = made.keys() & read.keys()
    return bool(shared) and all(made[path] == read[path] for path in shared)


def _data(hashes: Mapping[str, str]) -> dict[str, str]:
    return {path: md5 for path, md5 in hashes.items() if path.startswith("data/")}


def _unknown(root: Path, name: str, trained: list[str]) -> str:
    """What to say of a name that stands for no run."""
    declared: Mapping[str, Any] = {}
    with suppress(ConfigError):  # what is wrong with params.yaml is not what was asked for
        declared = load_params(root).get("experiments") or {}
    if name in declared:
        return f"experiment {name!r} has not been trained here: `grpo run --experiment {name}` does it"
    there = f"trained experiments here are {', '.join(trained)}" if trained else "no experiment has been trained here (`grpo run` does it)"
    return f"{name!r} is no run: {there}; a checkpoint folder, a run key, an MLflow run id (6 or more digits) or MODEL@ALIAS of its registry names one as well"
