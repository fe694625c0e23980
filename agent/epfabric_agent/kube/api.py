"""The API server as the agent uses it: get, list, create, apply, watch of plain JSON objects.

Every call blocks and has a bound; the agent calls it off its loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client, config

Object = dict[str, Any]
CALL_S = 8.0
REACH_S = 3.0
PAGE = 500
WATCH_S = 240
# The pod's token is read anew by the client's hook, which says ConfigException when it is away.
_FAULTS = (urllib3.exceptions.HTTPError, client.ApiException, config.ConfigException, OSError)
IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class ApiError(Exception):
    """A call that failed; `status` is 0 where the API server did not answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ConfigError(ValueError):
    """No way to the API server; the message says what is missing."""


def connect(kubeconfig: Path | None) -> Api:
    """By a kubeconfig, else as the pod's service account (whose token is read anew in time)."""
    settings = client.Configuration()
    try:
        load: Any = config.load_kube_config if kubeconfig else config.load_incluster_config
        if kubeconfig:
            load(config_file=str(kubeconfig), client_configuration=settings)
        else:
            load(client_configuration=settings)
    except (config.ConfigException, OSError, ValueError, TypeError, yaml.YAMLError) as error:
        hint = "" if kubeconfig else "; outside a cluster give --kubeconfig FILE or --manifest FILE"
        raise ConfigError(f"no access to an API server: {error}{hint}") from error
    settings.retries = False  # the agent's loops try again; a call must not wait for three
    settings.connection_pool_maxsize = 16
    return Api(client.ApiClient(configuration=settings))


class Api:
    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    @property
    def host(self) -> str:
        """Name or address that the API server is called by."""
        return urllib3.util.parse_url(self._api.configuration.host).host or ""

    def reach(self) -> str:
        """Why the API server does not answer now; empty where it does."""
        try:
            self._json("GET", "/version", timeout_s=REACH_S)
        except ApiError as error:
            return str(error)[:200]
        return ""

    def pages(self, path: str) -> Iterator[Object]:
        """Every object of a list, read in pages."""
        query = {"limit": str(PAGE)}
        while True:
            found = self._json("GET", path, query=query)
            yield from found.get("items") or ()
            onward = (found.get("metadata") or {}).get("continue")
            if not onward:
                return
            query = {"limit": str(PAGE), "continue": onward}

    def get(self, path: str) -> Object | None:
        """The object, or None where there is none."""
        try:
            return self._json("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: Object) -> Object:
        return self._json("POST", path, body=body, kind="application/json")

    def delete(self, path: str) -> None:
        """It may be gone already."""
        try:
            self._json("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    def merge(self, path: str, body: Object) -> Object:
        return self._json("PATCH", path, body=body, kind="application/merge-patch+json")

    def apply(self, path: str, body: Object, manager: str) -> Object:
        """Server-side apply of the fields that `manager` owns."""
        query = {"fieldManager": manager, "force": "true"}
        kind = "application/apply-patch+yaml"
        return self._json("PATCH", path, query=query, body=body, kind=kind)

    def watch(self, path: str, name: str) -> Iterator[tuple[str, Object]]:
        """(type, object) of one named object as it changes; ends after WATCH_S at the latest."""
        query = {"fieldSelector": f"metadata.name={name}"}
        listed = self._json("GET", path, query=query)
        try:
            items, version = list(listed["items"]), listed["metadata"]["resourceVersion"]
        except (TypeError, KeyError) as error:
            raise ApiError(0, f"GET {path}: the answer is no list of objects") from error
        for item in items:
            yield "MODIFIED", item
        if not items:
            yield "DELETED", {}
        query |= {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_S),
            "allowWatchBookmarks": "false",
        }
        response = self._send("GET", path, query, None, None, (CALL_S, WATCH_S + 20.0))
        try:
            yield from _events(response)
        finally:
            response.close()

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        kind: str | None = None,
        timeout_s: float = CALL_S,
    ) -> Object:
        response = self._send(method, path, query or {}, body, kind, (timeout_s, timeout_s))
        try:
            found: Object = json.loads(response.read())
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
            raise ApiError(0, f"{method} {path}: {error}") from error
        finally:
            response.close()
        return found

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None,
        kind: str | None,
        timeout_s: tuple[float, float],
    ) -> Any:
        headers = {"Accept": "application/json"}
        if kind:
            headers["Content-Type"] = kind
        try:
            prepared = self._api.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = self._api.call_api(*prepared, _request_timeout=timeout_s)
        except _FAULTS as error:
            raise ApiError(0, f"{method} {path}: {error}") from error
        raw = response.response
        if not 200 <= raw.status < 300:
            try:
                text = raw.read(65536).decode(errors="replace")
            except _FAULTS as error:
                raise ApiError(raw.status, f"{method} {path}: {error}") from error
            finally:
                raw.close()
            raise ApiError(raw.status, f"{method} {path}: {_message(text)} ({raw.status})")
        return raw


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:300]


def _events(response: Any) -> Iterator[tuple[str, Object]]:
    rest = b""
    try:
        for chunk in response.stream(65536, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(
                        int(event["object"].get("code", 0)), f"watch ended: {event['object']}"
                    )
                yield event["type"], event["object"]
    except (urllib3.exceptions.HTTPError, OSError, ValueError, TypeError, KeyError) as error:
        raise ApiError(0, f"watch broke: {error}") from error
