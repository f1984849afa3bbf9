"""A request as the routes see it, and what they answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from .state import HubServer


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        target: path with its query, as it came.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query)

    def flag(self, name: str) -> bool:
        """Whether a query parameter is set to a true value."""
        return self.query.get(name, [""])[0].lower() in ("1", "true")

    @property
    def token(self) -> str:
        """The bearer token; empty without one."""
        return (self.headers.get("authorization") or "").removeprefix("Bearer ")

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"{}")


@dataclass(frozen=True)
class Answer:
    """What goes back."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def as_json(value: Any, status: int = 200) -> Answer:
    """A JSON answer."""
    return Answer(status, {"Content-Type": "application/json"}, json.dumps(value).encode())


class RefusedError(Exception):
    """The request is answered by an error, in the Hub's form."""

    def __init__(self, status: int, message: str, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, dict(headers or {})

    def answer(self) -> Answer:
        """Headers X-Error-Code and X-Error-Message, and the message as JSON."""
        headers = {"X-Error-Message": self.message, "Content-Type": "application/json", **self.headers}
        if self.code:
            headers["X-Error-Code"] = self.code
        return Answer(self.status, headers, json.dumps({"error": self.message}).encode())


Route = Callable[..., Answer]
ROUTES: list[tuple[str, re.Pattern[str], Route]] = []


def route(method: str, pattern: str) -> Callable[[Route], Route]:
    """Registers `handler(hub, request, **parts)`; in the pattern `{name}` is one part, `{name:path}` any number."""
    expression = re.escape(pattern).replace(r"\{repo\}", "(?P<repo>[^/]+/[^/]+?)")
    expression = re.sub(r"\\{(\w+):path\\}", r"(?P<\1>.+)", expression)
    expression = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", expression)

    def register(handler: Route) -> Route:
        ROUTES.append((method, re.compile(expression), handler))
        return handler

    return register


def dispatch(hub: HubServer, request: Request) -> Answer:
    """The answer of the first route that fits; parts of the path arrive unquoted."""
    method = "GET" if request.method == "HEAD" else request.method
    for wanted, pattern, handler in ROUTES:
        if wanted == method and (match := pattern.fullmatch(request.path)):
            return handler(hub, request, **{name: unquote(text) for name, text in match.groupdict().items()})
    raise RefusedError(404, f"Cannot {request.method} {request.path}")
