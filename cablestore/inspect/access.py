"""Access to the page: the token and its cookie, Host and Origin, and the security headers of every response."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from markupsafe import escape

from cablestore.archive.content.http import is_own_host
from cablestore.inspect.settings import InspectSettings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_ENTER: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>cablestore</title>'
    '<link rel="icon" href="data:,">'
    '<meta http-equiv="refresh" content="0; url={url}"><a href="{url}">Continue</a></html>'
)
_YEAR_S: Final = 31_536_000


class Access:
    """Access to the page for requests with the token.

    The link with the token sets a cookie, so that the token does not stay in the address bar. Programs can send the
    token as `Authorization: Bearer TOKEN`.
    """

    def __init__(self, settings: InspectSettings) -> None:
        self._token = settings.token
        self._names = frozenset({settings.proxy_name.lower()} if settings.proxy_name else ())

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject a request, or answer a link that contains the token, or pass the request to the handler."""
        return self._rejection(request) or self._entry(request) or await handler(request)

    def _rejection(self, request: web.Request) -> web.Response | None:
        """Return an error response if the method, Host or Origin of `request` is not allowed, otherwise None."""
        if request.method not in {"GET", "HEAD"}:
            return web.Response(status=405, text="method not allowed: use GET\n", headers={"Allow": "GET, HEAD"})
        if not is_own_host(request, self._names):
            return web.Response(status=403, text="unknown Host. Use the address that the command printed\n")
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.host.lower():
            return web.Response(status=403, text="requests from other pages are rejected\n")
        return None

    def _entry(self, request: web.Request) -> web.Response | None:
        """Return the response to a request that the handler must not answer, otherwise None.

        If the address contains the token, this is a page that sets the cookie. Without a valid token, it is an error.
        """
        if request.path.startswith("/static/"):
            return None  # style and script need no token, because they are the same for every store
        given = request.query.get("token")
        if given is not None and self._is_token(given):
            return self._with_cookie(request)
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return None
        if given is None and self._is_token(request.cookies.get(self._cookie(request), "")):
            return None
        return web.Response(status=403, text="missing or invalid token. Open the link that the command printed\n")

    def _with_cookie(self, request: web.Request) -> web.Response:
        """Return a page that sets the cookie and opens the address of `request` again, without the token.

        It is not a redirect: after a redirect from a link in another program, browsers would withhold the cookie,
        because it is restricted to requests of the same site.
        """
        url = request.rel_url.without_query_params("token")
        response = web.Response(text=_ENTER.format(url=escape(str(url))), content_type="text/html")
        is_secure = bool(self._names)
        response.set_cookie(
            self._cookie(request),
            self._token,
            httponly=True,
            samesite="Strict",
            secure=is_secure,
            max_age=_YEAR_S if is_secure else None,
        )
        return response

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token.encode())

    @staticmethod
    def _cookie(request: web.Request) -> str:
        """Return the name of the cookie. It contains the port, because all ports of a host share their cookies."""
        port = 0 if request.transport is None else request.transport.get_extra_info("sockname")[1]
        return f"cablestore-inspect-{port}"
