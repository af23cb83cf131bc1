"""What the page answers: to whom, to what, and that no byte of it tells the sides apart."""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from assets.paths import Paths
from assets.review_votes import read_votes
from pipelines.review.app import FOLDER, page_html
from pipelines.review.guard import HEADERS
from pipelines.review.pairs import NoPairs, PairsFile, read_pairs
from tests.pipelines.review.conftest import HERE, ReviewOf, Texts, browser, some_texts, write_pairs

MARKUP = "<b>bold</b> **so** $x^2$ " * 3


def progress(client: TestClient) -> dict[str, Any]:
    return dict(client.get("/api/progress").json())


def pair(client: TestClient, position: int) -> dict[str, Any]:
    return dict(client.get(f"/api/pair/{position}", params={"pairs": progress(client)["pairs"]}).json())


def vote(client: TestClient, **changes: Any) -> Any:
    """Answer what is asked next, `left` and nothing else unless told otherwise; the response."""
    now = progress(client)
    answer = {"pairs": now["pairs"], **(now["next"] or {}), "choice": "left", "reason": "", "left_tags": [], "right_tags": [], "seconds": 1.5}
    return client.post("/api/vote", json=answer | changes)


def test_a_reviewer_is_led_through_all_pairs_then_guesses_then_the_end(review_of: ReviewOf, paths: Paths) -> None:
    anna = browser(review_of(some_texts(3)))
    assert progress(anna) == {
        "reviewer": "anna",
        "pairs": read_pairs(paths.blind_review_pairs).digest,
        "preference": {"answered": 0, "total": 3},
        "guess": {"answered": 0, "total": 3},
        "next": {"question": "preference", "position": 0},
        "can_undo": False,
    }
    steps = []
    while (now := progress(anna))["next"]:
        steps.append((now["next"]["question"], now["next"]["position"]))
        assert vote(anna).status_code == 200
    assert steps == [(question, position) for question in ("preference", "guess") for position in range(3)]
    assert [row["pair_id"] for row in read_votes(paths.blind_review_votes).iter_rows(named=True)] == ["id0", "id1", "id2"] * 2


def test_a_pair_holds_its_texts_and_its_place_alone(review_of: ReviewOf) -> None:
    client = browser(review_of([("2+2=", "**4**", "five")]))
    assert pair(client, 0) == {
        "position": 0,
        "total": 1,
        "prompt_html": '<div class="formatted"><p>2+2=</p>\n</div><pre class="written">2+2=</pre>',
        "left_html": '<div class="formatted"><p><strong>4</strong></p>\n</div><pre class="written">**4**</pre>',
        "right_html": '<div class="formatted"><p>five</p>\n</div><pre class="written">five</pre>',
    }


def everything_sent(review_of: ReviewOf, root: Path, texts: Sequence[Texts]) -> list[tuple[int, dict[str, str], dict[str, Any]]]:
    """Status, headers and content of every answer about every pair."""
    client = browser(review_of(texts, root=root))
    responses = [client.get(f"/api/pair/{position}", params={"pairs": progress(client)["pairs"]}) for position in range(len(texts))]
    return [(response.status_code, dict(response.headers), response.json()) for response in responses]


def test_swapping_sides_swaps_what_is_sent_and_changes_nothing_else(review_of: ReviewOf, tmp_path: Path) -> None:
    texts = [("prompt " + MARKUP, f"left {MARKUP} {place}", f"right {MARKUP * 2} {place}") for place in range(5)]
    one = everything_sent(review_of, tmp_path / "one", texts)
    other = everything_sent(review_of, tmp_path / "other", [(prompt, right, left) for prompt, left, right in texts])
    for (status, headers, sent), (other_status, other_headers, other_sent) in zip(one, other, strict=True):
        assert (status, headers) == (other_status, other_headers)  # the length is among the headers
        assert sent == other_sent | {"left_html": other_sent["right_html"], "right_html": other_sent["left_html"]}
        assert Counter(str(sent)) == Counter(str(other_sent))


def test_the_page_itself_is_the_same_whatever_the_pairs_are(review_of: ReviewOf, tmp_path: Path) -> None:
    def static(root: Path, texts: Sequence[Texts]) -> list[bytes]:
        client = browser(review_of(texts, root=root), name=None)
        return [client.get(path).content for path in ("/", "/page.js", "/page.css")]

    assert static(tmp_path / "one", some_texts(3)) == static(tmp_path / "other", some_texts(9))


def test_nothing_asks_for_the_key(review_of: ReviewOf, paths: Paths) -> None:
    client = browser(review_of(some_texts(1)))
    assert not paths.blind_review_key.exists()
    assert vote(client).status_code == 200
    folder = Path(__file__).resolve().parents[3] / "pipelines" / "review"
    assert not any("blind_review_key" in path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file())


def test_two_reviewers_at_once_see_their_own_votes_alone(review_of: ReviewOf, paths: Paths) -> None:
    review = review_of(some_texts(12))
    clients = {name: browser(review, name) for name in ("anna", "ben")}

    def judge(name: str) -> list[str]:
        choices = random.Random(name).choices(("left", "right", "tie", "both_bad"), k=12)
        for choice in choices:
            assert vote(clients[name], choice=choice).status_code == 200
        return choices

    with ThreadPoolExecutor(2) as pool:
        given = dict(zip(clients, pool.map(judge, clients), strict=True))
    found = read_votes(paths.blind_review_votes)
    assert found["vote"].to_list() == list(range(1, 25))
    for name, choices in given.items():
        assert found.filter(reviewer=name).select("position", "choice").rows() == list(enumerate(choices))
    assert vote(clients["anna"]).json()["guess"]["answered"] == 1
    assert progress(clients["ben"])["guess"]["answered"] == 0


def test_undoing_asks_the_same_again(review_of: ReviewOf) -> None:
    client = browser(review_of(some_texts(2)))
    first = progress(client)
    vote(client)
    assert client.post("/api/undo", json={"pairs": first["pairs"]}).json() == first


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"choice": "policy"}, "choice must be one of left, right, tie, both_bad"),
        ({"choice": "undone"}, "choice must be one of"),
        ({"choice": ["left"]}, "choice must be one of"),
        ({"question": "mood"}, "question must be one of preference, guess"),
        ({"question": ["guess"]}, "question must be one of preference, guess"),
        ({"position": 2}, "position must lie between 0 and 1"),
        ({"position": True}, "position must lie between 0 and 1"),
        ({"reason": "x" * 2001}, "at most 2,000 characters"),
        ({"left_tags": ["nice"]}, "left_tags must be a list of wrong"),
        ({"right_tags": [["wrong"]]}, "right_tags must be a list of wrong"),
        ({"seconds": -1}, "seconds must be a number"),
        ({"seconds": True}, "seconds must be a number"),
        ({"seconds": None}, "seconds must be a number"),
    ],
)
def test_an_answer_that_the_page_cannot_have_sent_is_refused(review_of: ReviewOf, paths: Paths, change: dict[str, Any], said: str) -> None:
    response = vote(browser(review_of(some_texts(2))), **change)
    assert response.status_code == 422
    assert said in response.json()["error"]
    assert len(read_votes(paths.blind_review_votes)) == 0


@pytest.mark.parametrize("body", ["", "[]", "{", "\ud800".encode("utf-16", "surrogatepass"), "[" * 60_000])
def test_what_is_no_json_object_is_refused(review_of: ReviewOf, body: str | bytes) -> None:
    client = browser(review_of(some_texts(1)))
    assert client.post("/api/vote", content=body, headers={"content-type": "application/json"}).status_code == 422


def test_a_reason_and_tags_are_kept(review_of: ReviewOf, paths: Paths) -> None:
    client = browser(review_of(some_texts(1)))
    answer = {**progress(client)["next"], "pairs": progress(client)["pairs"], "choice": "right", "reason": " klarer \ud800 \x1b "}
    answer |= {"left_tags": ["too_long", "wrong", "wrong"], "right_tags": ["format"], "seconds": 10**400}
    assert client.post("/api/vote", content=json.dumps(answer), headers={"content-type": "application/json"}).status_code == 200
    kept = read_votes(paths.blind_review_votes).row(0, named=True)
    assert (kept["reason"], kept["left_tags"], kept["right_tags"]) == ("klarer \\ud800 \\x1b", ["wrong", "too_long"], ["format"])
    assert kept["seconds"] == 86_400.0  # left open over night


@pytest.mark.parametrize("seconds", ["Infinity", "NaN"])
def test_no_time_is_refused(review_of: ReviewOf, seconds: str) -> None:
    client = browser(review_of(some_texts(1)))
    answer = json.dumps({**progress(client)["next"], "pairs": progress(client)["pairs"], "choice": "left", "reason": "", "left_tags": [], "right_tags": []})
    sent = answer[:-1] + f', "seconds": {seconds}' + "}"
    assert client.post("/api/vote", content=sent, headers={"content-type": "application/json"}).status_code == 422


@pytest.mark.parametrize("cookie", ["", "anna", "YW5uYQ.0123456789abcdef0123456789abcdef"])
def test_who_has_not_entered_sees_no_pair(review_of: ReviewOf, cookie: str) -> None:
    client = browser(review_of(some_texts(1)), name=None)
    client.cookies.set("reviewer", cookie)
    assert progress(client) == {"reviewer": None}
    assert client.get("/api/pair/0").status_code == client.post("/api/vote", json={}).status_code == client.post("/api/undo", json={}).status_code == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(review_of: ReviewOf) -> None:
    client = browser(review_of(some_texts(1)), name=None)
    cookie = client.post("/api/enter", json={"name": "Anna"}).headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    client.post("/api/leave", json={})
    assert progress(client) == {"reviewer": None}


def test_an_invited_reviewer_enters_by_link_and_nobody_by_name(review_of: ReviewOf) -> None:
    review = review_of(some_texts(1), invited=["Anna"])
    client = browser(review, name=None)
    assert client.post("/api/enter", json={"name": "Anna"}).status_code == 403
    assert client.post("/api/enter", json={"token": review.reviewers.token("ben")}).status_code == 403
    assert client.post("/api/enter", json={"token": review.reviewers.token("anna")}).status_code == 200
    assert progress(client)["reviewer"] == "anna"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:3001", "127.0.0.1.evil.example", "", "[::1]:3001"])
def test_a_foreign_name_that_points_here_reaches_nothing(review_of: ReviewOf, host: str) -> None:
    client = browser(review_of(some_texts(1)))
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:3001", "localhost", "localhost:9999"])
def test_this_machine_s_names_reach_the_page(review_of: ReviewOf, host: str) -> None:
    assert browser(review_of(some_texts(1)), name=None).get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://127.0.0.1:3001"}, 403),
        ({"origin": "http://127.0.0.1:3002"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-length": "70000"}, 413),
    ],
)
def test_another_site_cannot_vote(review_of: ReviewOf, paths: Paths, headers: dict[str, str], status: int) -> None:
    client = browser(review_of(some_texts(1)))
    sent = {"content-type": "application/json", **headers}
    assert client.post("/api/undo", content="{}", headers=sent).status_code == status
    assert len(read_votes(paths.blind_review_votes)) == 0


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/api/progress", "/api/pair/0", "/api/pair/x", "/nothing", "/api/vote"])
def test_every_answer_forbids_the_browser_everything_else(review_of: ReviewOf, path: str) -> None:
    response = browser(review_of(some_texts(1))).get(path)
    assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
    assert response.headers.get_list("content-security-policy") == [HEADERS["Content-Security-Policy"]]


def test_the_page_names_no_other_address_and_holds_no_script_of_its_own() -> None:
    page = page_html("<script>")
    for text in (page, *((FOLDER / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))):
        assert not re.search(r"https?:|url\(|@import|[\"'=(]//", text)
    assert "<script>" not in page
    assert not re.search(r" (style|on\w+)=", page)


def test_pairs_that_were_made_anew_are_noticed_and_old_votes_kept(review_of: ReviewOf, paths: Paths) -> None:
    client = browser(review_of(some_texts(2)))
    old = progress(client)["pairs"]
    vote(client)
    write_pairs(paths, some_texts(3))
    response = vote(client, pairs=old)
    assert response.status_code == 409
    assert "made anew" in response.json()["error"]
    assert client.get("/api/pair/0", params={"pairs": old}).status_code == 409
    assert progress(client)["preference"] == {"answered": 0, "total": 3}
    vote(client)
    assert read_votes(paths.blind_review_votes)["pairs_digest"].to_list() == [old, read_pairs(paths.blind_review_pairs).digest]


def test_pairs_that_are_being_made_are_said_to_be_missing(review_of: ReviewOf, paths: Paths) -> None:
    client = browser(review_of(some_texts(1)))
    paths.blind_review_pairs.unlink()
    response = client.get("/api/progress")
    assert response.status_code == 409
    assert "run `dvc repro blind_review_set@default` (or `grpo run`) first" in response.json()["error"]


def test_no_pairs_are_said_to_be_a_finding(paths: Paths) -> None:
    write_pairs(paths, [])
    with pytest.raises(NoPairs, match="answered alike"):
        PairsFile(paths).current()


def test_a_vote_on_a_full_disk_is_not_said_to_be_kept(review_of: ReviewOf, paths: Paths) -> None:
    client = browser(review_of(some_texts(1)))
    paths.blind_review_votes.mkdir()  # nothing can be renamed there
    response = vote(client)
    assert response.status_code == 507
    assert "could not be written" in response.json()["error"]


def test_there_is_no_other_way_in(review_of: ReviewOf) -> None:
    client = browser(review_of(some_texts(1)))
    statuses = {path: client.get(path).status_code for path in ("/api/vote", "/page.html.j2", "/../key.parquet", "/api/pair/1", "/api/pair/-1")}
    assert statuses["/api/vote"] == 405
    assert all(status in (404, 405, 409) for status in statuses.values())
    assert HERE not in client.get("/").text
