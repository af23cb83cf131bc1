"""Votes on disk: a SQLite table that only grows, and beside it the table that Git and DVC know, written anew after every vote."""

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from assets.review_votes import SCHEMA, UNDONE, read_votes, standing
from grpo_core.checkpoint import WriteError, write_file
from pipelines.review.answers import Answer

TABLE = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS votes (
    vote INTEGER PRIMARY KEY,
    pairs_digest TEXT NOT NULL,
    reviewer TEXT NOT NULL,
    position INTEGER NOT NULL,
    pair_id TEXT NOT NULL,
    question TEXT NOT NULL,
    choice TEXT NOT NULL,
    reason TEXT NOT NULL,
    left_tags TEXT NOT NULL,
    right_tags TEXT NOT NULL,
    seconds REAL NOT NULL,
    voted_at_ms INTEGER NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON votes BEGIN SELECT RAISE(ABORT, 'a vote is never changed'); END;
CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON votes BEGIN SELECT RAISE(ABORT, 'a vote is never deleted'); END;
CREATE TRIGGER IF NOT EXISTS no_replace BEFORE INSERT ON votes WHEN EXISTS (SELECT 1 FROM votes WHERE vote = NEW.vote)
BEGIN SELECT RAISE(ABORT, 'a vote is never replaced'); END;
"""
INSERT = f"INSERT INTO votes ({', '.join(list(SCHEMA)[1:])}) VALUES ({', '.join('?' * (len(SCHEMA) - 1))})"

Row = tuple[Any, ...]
"""A vote without its number, as SQLite holds it."""


class VoteStore:
    """All votes of an experiment. One process has it open; any number of threads may use it."""

    def __init__(self, database: Path, table: Path) -> None:
        """Opens or creates the database. Votes that only the table has (another machine's, or older than this database) are taken in."""
        database.parent.mkdir(parents=True, exist_ok=True)
        exported = _rows(read_votes(table))
        self._path, self._lock = table, threading.Lock()
        self._database = sqlite3.connect(database, check_same_thread=False)
        self._database.executescript(TABLE)
        self._votes = self._read()
        known = set(_rows(self._votes))
        self._insert(row for row in exported if row not in known)
        if known - set(exported):
            self._export()

    def add(self, pairs_digest: str, reviewer: str, pair_id: str, answer: Answer) -> None:
        """Keep an answer: it is on the disk when this returns. Raises WriteError when it is not, or only the exported table is not."""
        tags = json.dumps(list(answer.left_tags)), json.dumps(list(answer.right_tags))
        now = time.time_ns() // 1_000_000
        row = (pairs_digest, reviewer, answer.position, pair_id, answer.question, answer.choice, answer.reason, *tags, answer.seconds, now)
        with self._lock:
            self._insert([row])

    def standing(self, pairs_digest: str, reviewer: str) -> pl.DataFrame:
        """The reviewer's answers that count, in the order given."""
        return standing(self._votes.filter(pl.col("reviewer") == reviewer), pairs_digest)

    def undo(self, pairs_digest: str, reviewer: str) -> bool:
        """Take the reviewer's last answer that stands back; False when none does."""
        last = self.standing(pairs_digest, reviewer).tail(1)
        for vote in last.iter_rows(named=True):
            self.add(pairs_digest, reviewer, vote["pair_id"], Answer(vote["question"], vote["position"], UNDONE))
        return len(last) == 1

    def close(self) -> None:
        self._database.close()

    def _insert(self, rows: Iterable[Row]) -> None:
        """One transaction, then the export."""
        first, new = len(self._votes) + 1, list(rows)
        if not new:
            return
        try:
            with self._database:
                self._database.executemany(INSERT, new)
        except sqlite3.OperationalError as error:
            raise WriteError(f"the vote could not be kept: {error}") from error
        self._votes = pl.concat([self._votes, _table((number, *row) for number, row in enumerate(new, first))])
        self._export()

    def _export(self) -> None:
        write_file(self._path, self._votes.write_parquet)

    def _read(self) -> pl.DataFrame:
        return _table(self._database.execute(f"SELECT {', '.join(SCHEMA)} FROM votes ORDER BY vote"))


def _table(rows: Iterable[Row]) -> pl.DataFrame:
    """Numbered rows of SQLite as the table that is exported."""
    held = {name: pl.String() if isinstance(kind, pl.List) else kind for name, kind in SCHEMA.items()}
    tags = pl.col("left_tags", "right_tags").str.json_decode(pl.List(pl.String))
    return pl.DataFrame(list(rows), schema=held, orient="row").with_columns(tags)


def _rows(votes: pl.DataFrame) -> Sequence[Row]:
    """The other way, without the numbers."""
    return [tuple(json.dumps(value) if isinstance(value, list) else value for value in row) for row in votes.drop("vote").iter_rows()]
