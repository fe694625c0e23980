"""Objects of the API server as plain JSON; for the stand-in kubelet and the nodes it stands for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from kubernetes import client, config

Json = dict[str, Any]

TIMEOUT_S = 30.0
WATCH_S = 300
CONNECTIONS = 64
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
JSON = "application/json"


class ApiError(Exception):
    """An answer other than success; `code` is 0 when there was none."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """One API server, as the kubeconfig's user. Thread-safe."""

    def __init__(self, kubeconfig: Path, token: str = "") -> None:
        """With a token as whom it says, without what the kubeconfig's user is known by."""
        settings = client.Configuration()
        config.load_kube_config(  # type: ignore[no-untyped-call]
            str(kubeconfig), client_configuration=settings
        )
        if token:
            settings.cert_file = settings.key_file = settings.refresh_api_key_hook = None
            settings.api_key = {"BearerToken": f"Bearer {token}"}
        settings.connection_pool_maxsize = CONNECTIONS
        self.server: str = settings.host
        self._pool: urllib3.PoolManager = client.ApiClient(settings).rest_client.pool_manager
        self._settings = settings
        self._closed = threading.Event()
        self._watch: urllib3.BaseHTTPResponse | None = None

    @property
    def host_and_port(self) -> tuple[str, int]:
        parts = urlsplit(self.server)
        return parts.hostname or "127.0.0.1", parts.port or 443

    def get(self, path: str, accept: str = JSON, **query: str) -> Json:
        return self._ask("GET", path, query=query, accept=accept)

    def post(self, path: str, body: Json, **query: str) -> Json:
        return self._ask("POST", path, body, JSON, query)

    def put(self, path: str, body: Json, **query: str) -> Json:
        return self._ask("PUT", path, body, JSON, query)

    def patch(self, path: str, body: Json, kind: str = STRATEGIC, **query: str) -> Json:
        return self._ask("PATCH", path, body, kind, query)

    def delete(self, path: str, body: Json) -> Json:
        return self._ask("DELETE", path, body, JSON)

    def follow(self, path: str, listed: Callable[[list[Json]], None]) -> Iterator[Json]:
        """Calls `listed` with all objects, then gives events until one watch ends; no repetition.

        Ends quietly after `close()`; raises ApiError when the server cannot be reached.
        """
        found = self.get(path)
        listed(found["items"])
        query = {
            "watch": "true",
            "resourceVersion": found["metadata"]["resourceVersion"],
            "timeoutSeconds": str(WATCH_S),
        }
        answer = self._open("GET", path, query, None, "", WATCH_S + TIMEOUT_S, stream=True)
        self._watch = answer
        try:
            for line in lines_of(answer):
                if self._closed.is_set():
                    return
                event: Json = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 0), str(event["object"]))
                yield event
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if not self._closed.is_set():
                raise ApiError(0, f"watch {path}: {error!r}") from error
        finally:
            self._watch = None
            answer.close()

    def close(self) -> None:
        """Ends a running watch from another thread."""
        self._closed.set()
        if (answer := self._watch) is not None:
            try:
                answer.shutdown()
            except (ValueError, OSError, RuntimeError):
                return  # it has ended already

    def _ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        kind: str = "",
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> Json:
        answer = self._open(
            method, path, query or {}, body, kind, TIMEOUT_S, stream=False, accept=accept
        )
        found: Json = json.loads(answer.data)
        return found

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None,
        kind: str,
        timeout_s: float,
        *,
        stream: bool,
        accept: str = JSON,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept, "User-Agent": "epfabric-harness-kubelet"}
        if token := self._settings.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        if body is not None:
            headers["Content-Type"] = kind
        url = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                preload_content=not stream,
                timeout=urllib3.Timeout(connect=TIMEOUT_S, read=timeout_s),
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"{method} {path}: {error!r}") from error
        if answer.status >= 300:
            raise ApiError(answer.status, f"{method} {path}: {message_of(answer.data)}")
        return answer


def message_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace")


def lines_of(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for part in answer.stream(amt=None):
        *whole, rest = (rest + part).split(b"\n")
        yield from (line for line in whole if line)
