"""How long the page of `grpo review` takes to show a pair and to keep a vote: real requests to a server in this process.

    python bench/review.py [--pairs 200] [--characters 2000]

Pairs of Markdown with formulas, lists and code lie in a temporary folder. A page under 50 ms is not noticed.
"""

import argparse
import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from assets.paths import Paths
from assets.review_votes import pairs_digest
from pipelines.review.app import Review
from pipelines.review.pairs import PairsFile
from pipelines.review.reviewers import Reviewers
from pipelines.review.serve import bind, serve
from pipelines.review.store import VoteStore

LIMIT_MS = 50.0
TEXT = """To solve $x^2 - 5x + 6 = 0$ we look for two numbers whose product is 6 and whose sum is 5. **These are 2 and 3**, so the left side factors:

\\[
x^2 - 5x + 6 = (x - 2)(x - 3)
\\]

A product is zero only when one of its factors is, which leaves two cases to look at one after the other:

1. the first factor is zero when $x = 2$, and putting it in gives 4 - 10 + 6 = 0, as it should be
2. the second factor is zero when $x = \\frac{6}{2} = 3$, and 9 - 15 + 6 = 0 as well

```python
print([x for x in range(10) if x * x - 5 * x + 6 == 0])
```

"""
"""A part of a completion."""
NAME = "bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--characters", type=int, default=2_000, help="Length of every completion.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths(Path(folder))
        write_pairs(paths, options.pairs, options.characters)
        with serving(paths) as page:
            digest = pairs_digest(pl.read_parquet(paths.blind_review_pairs))
            shown = [page.milliseconds("GET", f"/api/pair/{position}?pairs={digest}") for position in range(options.pairs)]
            kept = [page.milliseconds("POST", "/api/vote", vote(digest, position)) for position in range(options.pairs)]
    print(f"{options.pairs} pairs of {options.characters:,} characters a completion:")
    for what, taken in (("show a pair", shown), ("keep a vote", kept)):
        median = statistics.median(taken)
        slow = "" if median < LIMIT_MS else f"  (more than {LIMIT_MS:g} ms)"
        print(f"{median:7.1f} ms median, {statistics.quantiles(taken, n=20)[-1]:7.1f} ms in 19 of 20  {what}{slow}")


def write_pairs(paths: Paths, count: int, characters: int) -> None:
    text = (TEXT * (characters // len(TEXT) + 1))[:characters]
    rows = [{"pair_id": f"{place:016x}", "position": place, "prompt": TEXT, "left_text": text, "right_text": f"{text}."} for place in range(count)]
    paths.blind_review_pairs.parent.mkdir(parents=True)
    pl.DataFrame(rows).write_parquet(paths.blind_review_pairs)


def vote(digest: str, position: int) -> dict[str, Any]:
    answer = {"pairs": digest, "question": "preference", "position": position, "choice": "left", "reason": "clearer"}
    return answer | {"left_tags": [], "right_tags": ["wrong"], "seconds": 2.5}


class Page:
    """A reviewer's browser."""

    def __init__(self, connection: http.client.HTTPConnection, token: str) -> None:
        self._connection = connection
        origin = f"http://{connection.host}:{connection.port}"
        self._headers = {"Origin": origin, "Content-Type": "application/json", "Cookie": f"reviewer={token}"}

    def milliseconds(self, method: str, path: str, sent: dict[str, Any] | None = None) -> float:
        """From asking to the whole answer."""
        begun = time.perf_counter()
        self._connection.request(method, path, None if sent is None else json.dumps(sent), self._headers)
        response = self._connection.getresponse()
        content = response.read()
        assert response.status == 200, content
        return 1000 * (time.perf_counter() - begun)


@contextmanager
def serving(paths: Paths) -> Iterator[Page]:
    reviewers = Reviewers(b"bench")
    votes = VoteStore(paths.votes_database, paths.blind_review_votes)
    listening = bind(0)
    app = Review(paths.experiment, PairsFile(paths), votes, reviewers).app()
    threading.Thread(target=serve, args=(app, listening), daemon=True).start()
    with closing(http.client.HTTPConnection("127.0.0.1", listening.getsockname()[1], timeout=30)) as connection:
        yield Page(connection, reviewers.token(NAME))


if __name__ == "__main__":
    main()
