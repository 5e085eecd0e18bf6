"""A REST catalog that gives up waiting. PyIceberg gives its requests no time limit, not even the first ones it makes."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

_TIMEOUTS = (10.0, 60.0)
"""Seconds to connect, and to wait for an answer."""


class _Timed(HTTPAdapter):
    """A catalog that accepts a request and never answers is one that is away."""

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        kwargs["timeout"] = kwargs.get("timeout") or _TIMEOUTS
        return super().send(request, *args, **kwargs)


class TimedRestCatalog(RestCatalog):
    """PyIceberg's own. The headers are the first thing that it gives a new session: before it asks for a token."""

    def _config_headers(self, session: Session) -> None:
        for prefix in ("http://", "https://"):
            session.mount(prefix, _Timed())
        super()._config_headers(session)
