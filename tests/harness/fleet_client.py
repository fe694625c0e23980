"""An API server for thousands of simulated writers of one process; for harness.fleet."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes import client, config

Json = dict[str, Any]
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
CONNECTIONS = 24
CALL_S = 30.0
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
WATCH_S = 600
PAGE = 250


class Refused(Exception):
    """An answer that another try would not change, or none after all of them."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class FleetClient:
    """To be made and used in one event loop. Counts what had to be asked again."""

    def __init__(self, kubeconfig: Path) -> None:
        settings = client.Configuration()
        config.load_kube_config(  # type: ignore[no-untyped-call]
            str(kubeconfig), client_configuration=settings
        )
        trust = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        self._server: str = settings.host
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=trust),
            headers={"Authorization": settings.get_api_key_with_prefix("BearerToken") or ""},
        )
        self.again = 0

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        kind: str = "application/json",
        accept: str = METADATA,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Raises Refused. What is there already was made by an answer that came too late."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept, "Content-Type": kind}
        bound = aiohttp.ClientTimeout(total=CALL_S)
        code, text = 0, ""
        for pause_s in (*PAUSES_S, None):
            try:
                async with self._session.request(
                    method, self._server + path, params=query or {}, data=data, headers=headers,
                    timeout=bound,
                ) as answer:  # fmt: skip
                    raw = await answer.read()
                    code, text = answer.status, raw[:300].decode(errors="replace")
                    if code < 300 or (code == 409 and method == "POST"):
                        found: Json = json.loads(raw)
                        return found
                if 400 <= code < 500 and code not in (409, 429):
                    break
            except (aiohttp.ClientError, TimeoutError) as error:
                code, text = 0, repr(error)
            if pause_s is None:
                break
            self.again += 1
            await asyncio.sleep(pause_s)
        raise Refused(code, f"{method} {path}: {text}")

    async def pages(self, path: str, accept: str = METADATA_LIST) -> AsyncIterator[Json]:
        """The pages of a list."""
        more: dict[str, str] = {}
        while True:
            query = {"limit": str(PAGE), **more}
            page = await self.ask("GET", path, accept=accept, query=query)
            yield page
            token = page["metadata"].get("continue")
            if not token:
                return
            more = {"continue": token}

    async def watch(self, path: str, version: str) -> AsyncIterator[Json]:
        """Events by their metadata, until the server ends it. Raises Refused when it broke."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
        bound = aiohttp.ClientTimeout(total=None, sock_read=WATCH_S + 10)
        try:
            async with self._session.get(
                self._server + path, params=query, headers={"Accept": METADATA}, timeout=bound
            ) as answer:
                if answer.status >= 300:
                    raise Refused(answer.status, f"watch {path}")
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event: Json = json.loads(line)
                        if event["type"] == "ERROR":
                            raise Refused(event["object"].get("code", 0), f"watch {path}")
                        yield event
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Refused(0, f"watch {path}: {error!r}") from error
