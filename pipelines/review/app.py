"""The page's answers. Nothing that leaves here depends on which model wrote which side: this process does not know it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from assets.review_votes import TAGS
from grpo_core.checkpoint import WriteError
from pipelines.review.answers import LONGEST_REASON, BadAnswer, parse_answer
from pipelines.review.guard import guarded
from pipelines.review.pairs import NoPairs, PairSet, PairsFile
from pipelines.review.questions import Question, questions
from pipelines.review.reviewers import NotInvited, Reviewers, StrangeName
from pipelines.review.store import VoteStore
from pipelines.review.texts import html_of

FOLDER = Path(__file__).parent
COOKIE = "reviewer"
COOKIE_SECONDS = 90 * 86_400
STATUS: Mapping[type[Exception], int] = {BadAnswer: 422, StrangeName: 422, NotInvited: 403, NoPairs: 409, WriteError: 507}
"""What a person can mend → HTTP status."""
CHANGED = "The pairs were made anew. What you said of the old ones is kept, and no longer counted."


@dataclass(frozen=True, slots=True)
class Review:
    """Pairs, who judges them, and their votes."""

    experiment: str
    pairs: PairsFile
    votes: VoteStore
    reviewers: Reviewers

    def app(self) -> ASGIApp:
        """As a web application."""
        routes = [
            Route("/", self.page),
            Route("/page.js", self.script),
            Route("/page.css", self.styles),
            Route("/api/progress", self.progress),
            Route("/api/pair/{position:int}", self.pair),
            Route("/api/enter", self.enter, methods=["POST"]),
            Route("/api/leave", self.leave, methods=["POST"]),
            Route("/api/vote", self.vote, methods=["POST"]),
            Route("/api/undo", self.undo, methods=["POST"]),
        ]
        return guarded(Starlette(routes=routes, exception_handlers={HTTPException: _error, **dict.fromkeys(STATUS, _error)}))

    def page(self, request: Request) -> Response:
        """The one page; everything that changes comes through /api."""
        return HTMLResponse(page_html(self.experiment))

    def script(self, request: Request) -> Response:
        return FileResponse(FOLDER / "page.js", media_type="text/javascript")

    def styles(self, request: Request) -> Response:
        return FileResponse(FOLDER / "page.css", media_type="text/css")

    async def enter(self, request: Request) -> Response:
        """Remember who this browser's reviewer is: by a name, or by the token of a link."""
        sent = await _sent(request)
        token = sent.get("token") or self.reviewers.enter(str(sent.get("name", "")))
        if not isinstance(token, str) or self.reviewers.reviewer(token) is None:
            raise HTTPException(403, "this link is not of this page's reviewers: ask for a new one")
        response = JSONResponse({})
        response.set_cookie(COOKIE, token, max_age=COOKIE_SECONDS, httponly=True, samesite="strict")
        return response

    async def leave(self, request: Request) -> Response:
        """Forget who this browser's reviewer is."""
        response = JSONResponse({})
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    def progress(self, request: Request) -> Response:
        """Where the reviewer stands; who has not entered stands nowhere."""
        reviewer = self._known(request)
        return JSONResponse({"reviewer": None} if reviewer is None else self._progress(reviewer, self.pairs.current()))

    def pair(self, request: Request) -> Response:
        """The texts at a position, rendered anew each time: a pair shown before takes as long as a new one."""
        self._reviewer(request)
        shown = self._shown(request.query_params.get("pairs"))
        position = request.path_params["position"]
        if position >= len(shown.pairs):
            raise HTTPException(404, f"there are {len(shown.pairs)} pairs")
        pair = shown.pairs[position]
        texts = {"prompt_html": html_of(pair.prompt), "left_html": html_of(pair.left_text), "right_html": html_of(pair.right_text)}
        return JSONResponse({"position": position, "total": len(shown.pairs), **texts})

    async def vote(self, request: Request) -> Response:
        """Keep an answer; the reply says what comes next."""
        sent = await _sent(request)
        return await run_in_threadpool(self._vote, self._reviewer(request), sent)

    async def undo(self, request: Request) -> Response:
        """Take the last answer back; the reply says what comes next, which is what was taken back."""
        sent = await _sent(request)
        return await run_in_threadpool(self._undo, self._reviewer(request), sent)

    def _vote(self, reviewer: str, sent: Mapping[str, Any]) -> Response:
        shown = self._shown(sent.get("pairs"))
        answer = parse_answer(sent, len(shown.pairs))
        self.votes.add(shown.digest, reviewer, shown.pairs[answer.position].pair_id, answer)
        return JSONResponse(self._progress(reviewer, shown))

    def _undo(self, reviewer: str, sent: Mapping[str, Any]) -> Response:
        shown = self._shown(sent.get("pairs"))
        self.votes.undo(shown.digest, reviewer)
        return JSONResponse(self._progress(reviewer, shown))

    def _known(self, request: Request) -> str | None:
        return self.reviewers.reviewer(request.cookies.get(COOKIE, ""))

    def _reviewer(self, request: Request) -> str:
        reviewer = self._known(request)
        if reviewer is None:
            raise HTTPException(401, "say who you are first")
        return reviewer

    def _shown(self, digest: Any) -> PairSet:
        """The pairs, if they are those that the page speaks of."""
        current = self.pairs.current()
        if current.digest != digest:
            raise HTTPException(409, CHANGED)
        return current

    def _progress(self, reviewer: str, shown: PairSet) -> dict[str, Any]:
        answered = {Question(*row) for row in self.votes.standing(shown.digest, reviewer).select("question", "position").iter_rows()}
        asked = questions(shown.digest, len(shown.pairs))
        following = next((question for question in asked if question not in answered), None)
        count = {kind: {"answered": 0, "total": 0} for kind in ("preference", "guess")}
        for each in asked:
            count[each.question]["total"] += 1
            count[each.question]["answered"] += each in answered
        next_question = following and {"question": following.question, "position": following.position}
        return {"reviewer": reviewer, "pairs": shown.digest, **count, "next": next_question, "can_undo": bool(answered)}


@cache
def page_html(experiment: str) -> str:
    """The page before anything is in it."""
    import jinja2

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.get_template("page.html.j2").render(experiment=experiment, tags=TAGS, longest_reason=LONGEST_REASON)


async def _sent(request: Request) -> Mapping[str, Any]:
    """The request's JSON object."""
    try:
        sent = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise BadAnswer("this is no JSON") from error
    if not isinstance(sent, dict):
        raise BadAnswer("this is no JSON object")
    return sent


async def _error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    return JSONResponse({"error": str(error)}, STATUS[type(error)])
