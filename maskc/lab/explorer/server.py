"""A server for one page and one person: on 127.0.0.1, behind a token, until Ctrl-C.

Whoever does not know the token gets nothing, nor does a request under another host name (a site
that resolves to this machine) or from another origin. It reads nothing that it is sent but the
settings of the mask that it was started with; expressions are parsed, never run.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit

from maskc.core.errors import ExplorerPort, MaskcError
from maskc.lab.explorer.model import Plain
from maskc.lab.explorer.page import html

HOST = "127.0.0.1"

Models = Callable[[dict[str, list[str]]], Plain]
"""The model for a query; an empty query returns the initial model."""


class ExplorerServer:
    """Serves a page at `url`; `serve` returns when `stop` is called, or is interrupted."""

    def __init__(self, models: Models, port: int = 0) -> None:
        """Listen, without serving yet.

        Args:
            models: makes models; it is called by one thread at a time.
            port: where to listen; 0 is a free one.

        Raises:
            ExplorerPort: that is not possible (MC721).
        """
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = ThreadingHTTPServer((HOST, port), self._handler(models))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ExplorerPort(port, reason, at="--port") from None
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self._server.server_address[1]}/{self.token}/"

    def serve(self) -> None:
        """Answer until it is stopped."""
        try:
            self._server.serve_forever(poll_interval=0.1)
        finally:
            self._server.server_close()

    def stop(self) -> None:
        """End `serve`; called by another thread."""
        self._server.shutdown()

    def _handler(self, models: Models) -> type[BaseHTTPRequestHandler]:
        outer, lock = self, Lock()

        class Handler(BaseHTTPRequestHandler):
            server_version, sys_version = "maskc", ""

            def do_GET(self) -> None:
                port = outer._server.server_address[1]
                addresses = {f"{name}:{port}" for name in (HOST, "localhost")}
                origin = self.headers.get("Origin")
                if self.headers.get("Host") not in addresses:
                    return self._send(421, "text/plain", "this host name is not served here")
                if origin is not None and urlsplit(origin).netloc not in addresses:
                    return self._send(403, "text/plain", "another origin may not ask")
                asked = urlsplit(self.path)
                _, token, *rest = asked.path.split("/")
                if not secrets.compare_digest(token.encode(), outer.token.encode()):
                    return self._send(404, "text/plain", "not found")
                if rest == [""]:
                    return self._model({}, page=True)
                if rest == ["model"]:
                    return self._model(parse_qs(asked.query, keep_blank_values=True))
                return self._send(404, "text/plain", "not found")

            def _model(self, query: dict[str, list[str]], page: bool = False) -> None:
                try:
                    with lock:
                        model = models(query)
                except MaskcError as error:
                    return self._send(400, "text/plain", str(error))
                if page:
                    return self._send(200, "text/html", html(model))
                return self._send(200, "application/json", json.dumps(model))

            def _send(self, status: int, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                for name, value in _GUARDS.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is logged: addresses hold the token."""

        return Handler


_GUARDS = {
    "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip
