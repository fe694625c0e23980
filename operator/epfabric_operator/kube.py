"""Thin access to the API server: get, pages, apply, patch, delete, watch; used by every edge.

Objects are plain dicts. Every call has a time-out. A missing object is None where the caller can
mean it; every other refusal is an ApiError.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import urllib3
from kubernetes import client, config

from epfabric_operator.tenure import NotLeading

PAGE_SIZE = 500
TIMEOUT_S = 15.0
JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"

Object = dict[str, Any]


class ApiError(Exception):
    """A request that failed; status is 0 when the API server could not be reached."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message} ({status} {reason})" if status else message)
        self.status = status
        self.reason = reason
        self.message = message


def load_client(kubeconfig: str | None, identity: str) -> client.ApiClient:
    """Client from a kubeconfig, or from the pod's service account when none is given.

    `identity` is its user agent, so that the API server's audit log tells replicas apart.
    Raises ApiError with status 0 when neither is there.
    """
    settings = client.Configuration()
    try:
        if kubeconfig:
            load: Any = config.load_kube_config
            load(config_file=kubeconfig, client_configuration=settings)
        else:
            load = config.load_incluster_config
            load(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        hint = "" if kubeconfig else "; outside a cluster give --kubeconfig"
        raise ApiError(0, "NoConfiguration", f"no access to Kubernetes: {error}{hint}") from error
    settings.connection_pool_maxsize = 16
    settings.retries = False  # the loops try again; a write must not be sent again unseen
    api = client.ApiClient(configuration=settings)
    api.user_agent = f"epfabric-operator/{identity}"
    return api


class Kube:
    def __init__(
        self,
        api: client.ApiClient,
        most_s: float = TIMEOUT_S,
        write_s: Callable[[], float] | None = None,
    ) -> None:
        """A request takes at most `most_s`, a write at most what `write_s` says before it.

        `write_s` may raise NotLeading; the write is an ApiError then.
        """
        self._api = api
        self._most_s = most_s
        self._write_s = write_s or (lambda: most_s)
        self.answered = time.monotonic()
        """When the API server last answered a request."""

    def get(self, path: str, *, accept: str = JSON) -> Object | None:
        try:
            return self._request("GET", path, accept=accept)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def text(self, path: str, query: Mapping[str, str]) -> str:
        """What is no JSON, such as a pod's log."""
        response = self._send("GET", path, query, "*/*", None, None, self._most_s)
        try:
            return response.data.decode(errors="replace")
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, "Disconnected", f"GET {path} broke: {error}") from error
        finally:
            response.release_conn()

    def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = JSON,
        key: str = "items",
    ) -> tuple[list[Object], str]:
        """Every item of a list, read in pages, and the resourceVersion to watch from."""
        items: list[Object] = []
        version = ""
        for page in self.paged(path, query, accept=accept):
            items += page.get(key) or []
            version = page["metadata"]["resourceVersion"]
        return items, version

    def each(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON
    ) -> Iterator[Object]:
        """The items of a list one by one, so that no more than a page is held."""
        for page in self.paged(path, query, accept=accept):
            yield from page.get("items") or ()

    def paged(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = JSON,
        size: int = PAGE_SIZE,
    ) -> Iterator[Object]:
        """The pages of a list, of at most `size` items each."""
        more: dict[str, str] = {}
        while True:
            asked = {**(query or {}), "limit": str(size), **more}
            page = self._request("GET", path, query=asked, accept=accept)
            token = page["metadata"].get("continue")
            yield page
            if not token:
                return
            more = {"continue": token}

    def apply(self, path: str, body: Object, manager: str) -> Object:
        """Server-side apply; takes over fields from other managers. Returns the whole object."""
        return self._request(
            "PATCH",
            path,
            query={"fieldManager": manager, "force": "true"},
            body=body,
            content_type="application/apply-patch+yaml",
        )

    def merge(self, path: str, body: Object, *, accept: str = JSON) -> Object:
        """JSON merge patch."""
        kind = "application/merge-patch+json"
        return self._request("PATCH", path, body=body, content_type=kind, accept=accept)

    def create(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        query = {"dryRun": "All"} if dry_run else None
        return self._request("POST", path, query=query, body=body, content_type=JSON)

    def replace(self, path: str, body: Object) -> Object:
        return self._request("PUT", path, body=body, content_type=JSON)

    def delete(self, path: str, uid: str | None = None) -> None:
        """Delete in the background; an object that is gone, or another by now, is no error."""
        body: Object = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self._request("DELETE", path, body=body, content_type=JSON)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def watch(
        self, path: str, version: str, *, accept: str = JSON, seconds: int = 300
    ) -> Iterator[Object]:
        """Events after `version` until the server ends the watch; ApiError 410 if it is too old."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        response = self._send("GET", path, query, accept, None, None, (self._most_s, seconds + 10))
        try:
            rest = b""
            for chunk in response.stream(64 * 1024):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(
                            status.get("code", 500), status.get("reason", ""), status["message"]
                        )
                    yield event
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise ApiError(0, "Disconnected", f"watch of {path} broke: {error}") from error
        finally:
            response.close()

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        body: Any = None,
        content_type: str | None = None,
    ) -> Object:
        try:
            most_s = self._most_s if method == "GET" else min(self._most_s, self._write_s())
            response = self._send(method, path, query, accept, body, content_type, most_s)
        except NotLeading as error:
            raise ApiError(0, "NotLeading", f"{method} {path}: {error}") from error
        try:
            loaded: Object = json.loads(response.data)
            self.answered = time.monotonic()
            return loaded
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise ApiError(0, "Disconnected", f"{method} {path} broke: {error}") from error
        finally:
            response.release_conn()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        accept: str,
        body: Any,
        content_type: str | None,
        timeout: float | tuple[float, float],
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept}
        if content_type:
            headers["Content-Type"] = content_type
        try:
            # Reads the service account's token, which may be away for a moment.
            verb, url, headers, body, _ = self._api.param_serialize(
                method=method,
                resource_path=path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            wrapped = self._api.call_api(verb, url, headers, body, _request_timeout=timeout)
            response: urllib3.BaseHTTPResponse = wrapped.response
            if response.status >= 300:
                raise _refusal(response)
            return response
        except (urllib3.exceptions.HTTPError, client.ApiException, OSError) as error:
            host = self._api.configuration.host
            raise ApiError(0, "Unreachable", f"no answer from {host}: {error}") from error


def _refusal(response: urllib3.BaseHTTPResponse) -> ApiError:
    text = response.data.decode(errors="replace")
    response.release_conn()
    try:
        status = json.loads(text)
        return ApiError(response.status, status.get("reason", ""), status.get("message", text))
    except ValueError:
        return ApiError(response.status, response.reason or "", text[:300])
