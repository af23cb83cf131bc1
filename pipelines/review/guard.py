"""What every request must be and every answer must carry: only this machine's own page is served, and a browser lets it do nothing else."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost")
LARGEST_BODY = 65_536


def guarded(app: ASGIApp) -> ASGIApp:
    """`app`, reached only by requests that `refusal` has nothing against, and never answering without `HEADERS`."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = refusal(scope["method"], Headers(scope=scope))
        await (refused or app)(scope, receive, send_with_headers)

    return guard


def refusal(method: str, headers: Headers) -> JSONResponse | None:
    """The answer to a request that this machine's page cannot have sent; None for all others."""
    host = headers.get("host", "")
    if host.rpartition(":")[0] not in LOOPBACK and host not in LOOPBACK:
        return _refused(421, f"this page is served at {' and '.join(LOOPBACK)} only, not at {host!r}")  # a foreign name that was made to point here
    if method in ("GET", "HEAD"):
        return None
    if headers.get("origin") != f"http://{host}":
        return _refused(403, "another site may not vote")
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _refused(415, "only application/json is understood")
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and int(length) <= LARGEST_BODY):
        return _refused(413, f"at most {LARGEST_BODY:,} bytes, their number told")
    return None


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status)
