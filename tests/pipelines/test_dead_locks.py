import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.dead_locks import release_dead_locks, wait_until_free


def test_locks_of_the_dead_and_the_unreaped_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert zombie.stdout is not None
    zombie.stdout.read()  # it has ended, but its exit status was not read
    ended = subprocess.Popen(["true"])
    ended.wait()
    me = {"pid": os.getpid(), "cmd": "dvc repro"}
    gone, unreaped = {"pid": ended.pid, "cmd": "dvc repro"}, {"pid": zombie.pid, "cmd": "dvc repro"}
    lock = tmp_path / ".dvc" / "tmp" / "rwlock"
    lock.parent.mkdir(parents=True)
    lock.write_text(json.dumps({"write": {"/a": gone, "/b": me, "/c": unreaped}, "read": {"/d": [gone, me], "/e": [unreaped]}}))
    try:
        for _ in range(100):
            assert release_dead_locks(tmp_path)[os.getpid()] == "dvc repro"
            if "/c" not in json.loads(lock.read_text())["write"]:
                break
        assert json.loads(lock.read_text()) == {"write": {"/b": me}, "read": {"/d": [me]}}
    finally:
        zombie.stdout.close()
        zombie.wait()


def test_a_checkout_where_dvc_never_ran_has_nothing_to_release(tmp_path: Path) -> None:
    assert release_dead_locks(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_one_who_works_in_the_checkout_is_named_and_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = subprocess.Popen(["sleep", "1"])
    lock = tmp_path / ".dvc" / "tmp" / "rwlock"
    lock.parent.mkdir(parents=True)
    lock.write_text(json.dumps({"write": {"/a": {"pid": other.pid, "cmd": "dvc repro"}}, "read": {}}))
    wait_until_free(tmp_path)
    assert other.poll() is None or other.wait() == 0
    assert capfd.readouterr().err == f"waiting for process {other.pid} (dvc repro), which works in this checkout; Ctrl-C gives up\n"
    assert json.loads(lock.read_text()) == {"write": {}, "read": {}}
