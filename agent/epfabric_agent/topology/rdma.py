"""RDMA devices that verbs can open; the only module that imports pyverbs, and late.

pyverbs must be of the same version as the machine's rdma-core, so it comes with the system and may
be absent. Where no device exists, listing them raises: both are an ordinary "none" here.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

_log = logging.getLogger(__name__)


def openable_devices(load: Any = importlib.import_module) -> tuple[str, ...]:
    """Names of the devices that libibverbs lists."""
    try:
        device = load("pyverbs.device")
    except ImportError as error:
        _log.debug("no pyverbs: %s", error)
        return ()
    try:
        return tuple(sorted(found.name.decode() for found in device.get_device_list()))
    except Exception as error:  # PyverbsRDMAError; its class is not there without pyverbs
        _log.debug("no RDMA device: %s", error)
        return ()
