"""Who votes. A reviewer is a name, and a token that only this checkout can make for it: his cookie and his link."""

import base64
import hmac
import os
import re
import secrets
import unicodedata
from collections.abc import Sequence
from pathlib import Path

NAME = re.compile(r"[\w .-]{1,40}")


class StrangeName(ValueError):
    """A name that is none: says the rule."""


class NotInvited(ValueError):
    """A reviewer who may not vote here."""


class Reviewers:
    """Those who may vote: whoever gives a name, or only those who were `invited`."""

    def __init__(self, secret: bytes, invited: Sequence[str] = ()) -> None:
        self._secret = secret
        self._invited = {reviewer_name(name) for name in invited}

    def enter(self, name: str) -> str:
        """The token of whoever gives this name. Raises `StrangeName` or, where reviewers are invited, `NotInvited`."""
        if self._invited:
            raise NotInvited("reviewers of this experiment are invited: open the link that was made for you")
        return self.token(name)

    def token(self, name: str) -> str:
        """`NAME.SIGNATURE`, fit for an address and a cookie."""
        written = base64.urlsafe_b64encode(reviewer_name(name).encode()).decode().rstrip("=")
        return f"{written}.{self._signature(written)}"

    def reviewer(self, token: str) -> str | None:
        """The name whose token this is; None when it is nobody's who may vote."""
        written, _, signature = token.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(written).encode()):
            return None
        name = base64.urlsafe_b64decode(written + "=" * (-len(written) % 4)).decode()
        return name if not self._invited or name in self._invited else None

    def _signature(self, written: str) -> str:
        return hmac.new(self._secret, written.encode(), "sha256").hexdigest()[:32]


def reviewer_name(name: str) -> str:
    """The spelling that votes are kept under: `Anna  B.` and `anna b.` are one reviewer. Raises `StrangeName`."""
    spelt = " ".join(unicodedata.normalize("NFC", name).casefold().split())
    if not NAME.fullmatch(spelt):
        raise StrangeName(f"a reviewer's name has 1 to 40 letters, digits, spaces, '.', '_' or '-', got {name[:60]!r}")
    return spelt


def read_secret(path: Path) -> bytes:
    """What tokens of this checkout are signed with; made when it is not there, and readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(secrets.token_bytes(32))
    return path.read_bytes()
