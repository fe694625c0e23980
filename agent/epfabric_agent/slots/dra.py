"""The service that a kubelet calls for claims of slots; for slots.main."""

from __future__ import annotations

import logging
import threading

import grpc

from epfabric_agent.kube.api import ApiError
from epfabric_agent.proto import dra_pb2, dra_pb2_grpc
from epfabric_agent.slots.claims import Claim, ClaimError, Claims

VERSIONS = ("v1.DRAPlugin",)
_log = logging.getLogger(__name__)


class DraService(dra_pb2_grpc.DRAPluginServicer):
    """One claim's fault is that claim's answer, not the call's."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._one = threading.Lock()

    def NodePrepareResources(
        self, request: dra_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodePrepareResourcesResponse:
        answer = dra_pb2.NodePrepareResourcesResponse()
        for asked in request.claims:
            answer.claims[asked.uid].CopyFrom(self._prepare(asked))
        return answer

    def NodeUnprepareResources(
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        answer = dra_pb2.NodeUnprepareResourcesResponse()
        for asked in request.claims:
            answer.claims[asked.uid].error = ""
            try:
                with self._one:
                    self._claims.unprepare(_claim(asked))
            except (ClaimError, OSError) as error:
                _log.warning("claim %s/%s: %s", asked.namespace, asked.name, error)
                answer.claims[asked.uid].error = str(error)
        return answer

    def _prepare(self, asked: dra_pb2.Claim) -> dra_pb2.NodePrepareResourceResponse:
        try:
            with self._one:
                devices = self._claims.prepare(_claim(asked))
        except (ClaimError, ApiError, OSError) as error:
            _log.warning("claim %s/%s: %s", asked.namespace, asked.name, error)
            return dra_pb2.NodePrepareResourceResponse(error=str(error))
        return dra_pb2.NodePrepareResourceResponse(
            devices=[
                dra_pb2.Device(
                    request_names=[found.request],
                    pool_name=found.pool,
                    device_name=found.device,
                    cdi_device_ids=[found.cdi],
                    share_id=found.share or None,
                )
                for found in devices
            ]
        )


def _claim(asked: dra_pb2.Claim) -> Claim:
    return Claim(asked.namespace, asked.name, asked.uid)
