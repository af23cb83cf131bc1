"""DVC's cache, read without importing DVC: where an object lies, and what a folder held."""

import configparser
import json
import os
from pathlib import Path


def cache_folder(root: Path) -> Path:
    """The cache that DVC uses in this checkout: `cache.dir` of the nearest configuration that sets it, else .dvc/cache."""
    for config in _configurations(root):
        parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
        try:
            parser.read(config, encoding="utf-8")
        except configparser.Error as error:
            raise ValueError(f"{config} cannot be read: {' '.join(str(error).split())}") from error
        folder = (parser.get("cache", "dir", fallback=None) or "").strip("\"'")
        if folder:
            return (config.parent / Path(folder).expanduser()).resolve()
    return root / ".dvc" / "cache"


def object_path(root: Path, md5: str) -> Path:
    """Where the cache keeps what has this hash, whether or not it does."""
    return cache_folder(root) / "files" / "md5" / md5[:2] / md5[2:]


def cached_listing(root: Path, md5: str) -> dict[str, str] | None:
    """Path within the folder → md5 of the files of a folder (`….dir`); None when the cache lacks it."""
    path = object_path(root, md5)
    try:
        return {file["relpath"]: file["md5"] for file in json.loads(path.read_bytes())}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} in DVC's cache is damaged ({error}): delete it, then `dvc fetch` brings it from a remote") from error


def _configurations(root: Path) -> list[Path]:
    """DVC's configuration files, the one that wins first."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    user = Path(os.environ.get("DVC_GLOBAL_CONFIG_DIR") or home / "dvc")
    shared = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)[0]
    system = Path(os.environ.get("DVC_SYSTEM_CONFIG_DIR") or Path(shared) / "dvc")
    return [root / ".dvc" / "config.local", root / ".dvc" / "config", user / "config", system / "config"]
