"""The page as a process: started, killed, ended, and started twice."""

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from assets.paths import Paths
from assets.review_votes import read_votes
from pipelines.review.pairs import read_pairs
from pipelines.review.store import VoteStore
from tests.pipelines.review.conftest import some_texts, write_pairs

COMMAND = (sys.executable, "-c", "from pipelines.commands.review import review; review()", "--no-browser")
VOTES, THREADS = 1_000, 4
KILLED_AFTER = 300


@pytest.fixture
def served(checkout: Path) -> Paths:
    """A checkout with pairs to judge."""
    paths = Paths(checkout)
    write_pairs(paths, some_texts(VOTES))
    return paths


@contextmanager
def review(paths: Paths, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The running command and its port."""
    environment = os.environ | {"PYTHONPATH": str(paths.root)}
    process = subprocess.Popen([*COMMAND, *arguments], cwd=paths.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        said = ""
        while "The page" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield process, int(re.findall(r"127\.0\.0\.1:(\d+)", said)[-1])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def refused(paths: Paths, *arguments: str) -> str:
    """What the command says when it does not start."""
    environment = os.environ | {"PYTHONPATH": str(paths.root)}
    done = subprocess.run([*COMMAND, *arguments], cwd=paths.root, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done
    return done.stderr


class Reviewer:
    """A browser on a real connection."""

    def __init__(self, port: int, name: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
        self._connection.request("POST", "/api/enter", json.dumps({"name": name}), self._headers)
        response = self._connection.getresponse()
        response.read()
        self._headers["Cookie"] = str(response.getheader("set-cookie")).partition(";")[0]
        self.close = self._connection.close

    def vote(self, digest: str, position: int) -> bool:
        """Whether the server said that it is kept."""
        answer = {"pairs": digest, "question": "preference", "position": position, "choice": "left", "reason": "", "left_tags": [], "right_tags": []}
        self._connection.request("POST", "/api/vote", json.dumps(answer | {"seconds": 1}), self._headers)
        response = self._connection.getresponse()
        response.read()
        return response.status == 200


def votes_until_killed(served: Paths) -> set[tuple[str, int]]:
    """1,000 votes sent from four threads, with the server killed in the middle: those that it acknowledged."""
    digest, acknowledged, enough = read_pairs(served.blind_review_pairs).digest, set[tuple[str, int]](), threading.Event()

    def send(port: int, name: str) -> None:
        with closing(Reviewer(port, name)) as reviewer, suppress(OSError, http.client.HTTPException):
            for position in range(VOTES // THREADS):
                if reviewer.vote(digest, position):
                    acknowledged.add((name, position))
                if len(acknowledged) >= KILLED_AFTER:
                    enough.set()

    with review(served) as (process, port):
        threads = [threading.Thread(target=send, args=(port, f"reviewer {number}")) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        assert enough.wait(120)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for thread in threads:
            thread.join(30)
    return acknowledged


def test_no_acknowledged_vote_is_lost_by_a_kill(served: Paths) -> None:
    acknowledged = votes_until_killed(served)
    assert KILLED_AFTER <= len(acknowledged) < VOTES
    database = sqlite3.connect(served.votes_database)
    kept = set(database.execute("SELECT reviewer, position FROM votes"))
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    assert acknowledged <= kept
    assert len(kept - acknowledged) <= THREADS  # those whose answer was under way
    VoteStore(served.votes_database, served.blind_review_votes).close()
    assert set(read_votes(served.blind_review_votes).select("reviewer", "position").iter_rows()) == kept
    with review(served) as (_, port), closing(Reviewer(port, "reviewer 0")) as reviewer:  # the lock died with its holder
        assert reviewer.vote(read_pairs(served.blind_review_pairs).digest, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once(served: Paths, number: signal.Signals) -> None:
    with review(served) as (process, port), closing(Reviewer(port, "anna")):  # its connection stays open
        begun = time.monotonic()
        process.send_signal(number)
        assert process.wait(20) == 0
        assert time.monotonic() - begun < 2.0
        assert process.stdout is not None and process.stdout.read().endswith("every vote is kept.\nended\n")


def test_a_second_process_says_where_the_first_one_is(served: Paths) -> None:
    with review(served) as (_, port):
        assert f"at http://127.0.0.1:{port}/: use that page" in refused(served)
        assert f"port {port} cannot be used: choose another with --port" in refused(served, "--port", str(port))


@pytest.mark.parametrize(
    ("texts", "said"), [(None, "is not there: run `dvc repro blind_review_set@default` (or `grpo run`) first"), ((), "answered alike wherever")]
)
def test_without_pairs_it_says_why(checkout: Path, texts: Sequence[tuple[str, str, str]] | None, said: str) -> None:
    paths = Paths(checkout)
    if texts is not None:
        write_pairs(paths, texts)
    assert said in refused(paths)


def test_an_invitation_is_a_link_that_survives_a_restart(served: Paths) -> None:
    def links() -> list[str]:
        environment = os.environ | {"PYTHONPATH": str(served.root)}
        command = [*COMMAND, "--invite", "Anna", "--invite", "Ben"]
        process = subprocess.Popen(command, cwd=served.root, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        process.terminate()
        process.communicate(timeout=20)
        return [line.partition("token=")[2] for line in lines[1:3]]

    first = links()
    assert len(set(first)) == 2 and all(first)
    assert links() == first


def test_needed_votes_are_printed_without_any_pairs(checkout: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run([*COMMAND, "--needed"], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "preferred in 60% of the pairs     210 votes" in done.stdout
