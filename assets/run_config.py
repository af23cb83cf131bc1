"""The checked configuration, a JSON file a section: changing one section makes only the stages that read it stale."""

import shutil
from collections.abc import Mapping

from assets.paths import Paths


def produce(paths: Paths, files: Mapping[str, bytes]) -> None:
    """Replace the folder by `files` (relative path → content) in one move: what is no longer declared goes, and a failure changes nothing."""
    aside = paths.run_config.with_name("run_config.new")
    retired = paths.run_config.with_name("run_config.old")
    for leftover in (aside, retired):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, content in files.items():
        path = aside / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    if paths.run_config.exists():
        paths.run_config.rename(retired)
    aside.rename(paths.run_config)
    shutil.rmtree(retired, ignore_errors=True)
