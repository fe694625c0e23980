"""Data center bridging by netlink (RTM_GETDCB, RTM_SETDCB): PFC and the DSCP map; for nic.knobs.

The numbers are those of linux/dcbnl.h; a test compares them with a program that includes it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, nla, nlmsg
from pyroute2.netlink.exceptions import NetlinkDecodeError
from pyroute2.netlink.rtnl import RTM_GETDCB, RTM_SETDCB

IEEE_SET, IEEE_GET, IEEE_DEL = 20, 21, 27
SELECTOR_DSCP = 5
PRIORITIES = 8
DSCPS = 64
_PFC = struct.Struct("=BBBxHxx16Q")
_APP = struct.Struct("=BBH")
_HEADER = struct.Struct("=IHHII")
_TIMEOUT_S = 5.0
_RECEIVE_BYTES = 65536


class DcbError(OSError):
    """The kernel or the driver refuses; errno EOPNOTSUPP where the NIC has no such thing."""


class IeeeApps(nla):  # type: ignore[misc]
    nla_map = ((0, "APP_UNSPEC", "none"), (1, "DCB_ATTR_IEEE_APP", "cdata"))


class Ieee(nla):  # type: ignore[misc]
    apps = IeeeApps
    nla_map = (
        (2, "DCB_ATTR_IEEE_PFC", "cdata"),
        (3, "DCB_ATTR_IEEE_APP_TABLE", "apps"),
    )


class DcbMessage(nlmsg):  # type: ignore[misc]
    """struct dcbmsg with its attributes, as the kernel answers RTM_GETDCB."""

    fields = (("dcb_family", "B"), ("cmd", "B"), ("dcb_pad", "H"))
    ieee = Ieee
    nla_map = ((1, "DCB_ATTR_IFNAME", "asciiz"), (13, "DCB_ATTR_IEEE", "ieee"))


class DcbVerdict(nlmsg):  # type: ignore[misc]
    """The answer to a change: the attribute holds one byte, the negated error or 0."""

    fields = DcbMessage.fields
    nla_map = ((1, "DCB_ATTR_IFNAME", "asciiz"), (13, "DCB_ATTR_IEEE", "uint8"))


def request(kind: int, cmd: int, interface: str, ieee: list[Any]) -> bytes:
    """A whole netlink message; `ieee` are attributes of DCB_ATTR_IEEE."""
    message = DcbMessage()
    message["cmd"] = cmd
    message["attrs"] = [("DCB_ATTR_IFNAME", interface)]
    if ieee:
        message["attrs"].append(("DCB_ATTR_IEEE", {"attrs": ieee}))
    message["header"]["type"] = kind
    message["header"]["flags"] = NLM_F_REQUEST | (NLM_F_ACK if kind == RTM_SETDCB else 0)
    message["header"]["sequence_number"] = 1
    message["header"]["pid"] = 0
    message.encode()
    return bytes(message.data)


def pfc_of(answer: DcbMessage) -> str | None:
    """Eight bits, priority 0 first, such as 0,0,0,1,0,0,0,0; None where the NIC has none.

    Raises DcbError, as trust_of, for an answer that is cut short.
    """
    data = _ieee(answer, "DCB_ATTR_IEEE_PFC")
    if data is None:
        return None
    enabled = _unpacked(_PFC, data)[1]
    return ",".join(str(enabled >> priority & 1) for priority in range(PRIORITIES))


def pfc_attribute(bits: str, answer: DcbMessage) -> tuple[str, bytes]:
    """`bits` in what `answer` says of the rest (the cable's delay, for example)."""
    known = list(_unpacked(_PFC, _ieee(answer, "DCB_ATTR_IEEE_PFC") or bytes(_PFC.size)))
    known[1] = sum(1 << at for at, bit in enumerate(bits.split(",")) if bit == "1")
    return ("DCB_ATTR_IEEE_PFC", _PFC.pack(*known))


def trust_of(answer: DcbMessage) -> str:
    """dscp= and each DSCP's priority (- where it has none), or pcp where no DSCP has one."""
    priorities = ["-"] * DSCPS
    for selector, priority, protocol in _apps(answer):
        if selector == SELECTOR_DSCP and protocol < DSCPS:
            priorities[protocol] = str(priority)
    return "pcp" if set(priorities) == {"-"} else "dscp=" + "".join(priorities)


def trust_attribute(entries: list[tuple[int, int]]) -> tuple[str, Any]:
    """`entries` of DSCP and priority."""
    apps = [("DCB_ATTR_IEEE_APP", _APP.pack(SELECTOR_DSCP, prio, dscp)) for dscp, prio in entries]
    return ("DCB_ATTR_IEEE_APP_TABLE", {"attrs": apps})


def trust_changes(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Entries to delete and entries to set on the way from one text of `trust_of` to another."""
    before, after = _entries(old), _entries(new)
    return sorted(before - after), sorted(after - before)


def ask(interface: str) -> DcbMessage:
    """Raises DcbError."""
    answer: DcbMessage = _exchange(request(RTM_GETDCB, IEEE_GET, interface, []), DcbMessage)
    return answer


def change(cmd: int, interface: str, attribute: Any) -> None:
    """IEEE_SET or IEEE_DEL of one attribute. Raises DcbError."""
    answer = _exchange(request(RTM_SETDCB, cmd, interface, [attribute]), DcbVerdict)
    verdict = answer.get_attr("DCB_ATTR_IEEE")
    if verdict:
        number = 256 - int(verdict)  # a negative errno in a byte
        raise DcbError(number, os.strerror(number))


def unsupported(error: DcbError) -> bool:
    return error.errno in (errno.EOPNOTSUPP, errno.EINVAL)


def _entries(text: str) -> set[tuple[int, int]]:
    table = text.removeprefix("dscp=") if text.startswith("dscp=") else ""
    return {(dscp, int(prio)) for dscp, prio in enumerate(table) if prio != "-"}


def _ieee(answer: DcbMessage, name: str) -> Any:
    ieee = _nested(answer.get_attr("DCB_ATTR_IEEE"))
    return None if ieee is None else ieee.get_attr(name)


def _nested(found: Any) -> Any:
    """pyroute2 leaves the bytes of what it cannot decode."""
    if found is not None and not isinstance(found, nla):
        raise DcbError(errno.EBADMSG, "the kernel's answer is not understood")
    return found


def _apps(answer: DcbMessage) -> Iterator[tuple[int, int, int]]:
    table = _nested(_ieee(answer, "DCB_ATTR_IEEE_APP_TABLE"))
    for name, data in table["attrs"] if table is not None else ():
        if name == "DCB_ATTR_IEEE_APP":
            yield _unpacked(_APP, data)


def _unpacked(layout: struct.Struct, data: bytes) -> tuple[Any, ...]:
    if len(data) < layout.size:
        raise DcbError(errno.EBADMSG, f"the kernel's answer has {len(data)} bytes of {layout.size}")
    return layout.unpack_from(data)


def _exchange(message: bytes, kind: type[nlmsg]) -> Any:
    """A socket for each: pyroute2's own knows no such messages and waits for others' ends."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        netlink.bind((0, 0))
        netlink.send(message)
        while True:
            try:
                data = netlink.recv(_RECEIVE_BYTES)
            except TimeoutError:
                raise DcbError(errno.ETIMEDOUT, "the kernel does not answer") from None
            if found := decode(data, kind):
                return found


def decode(data: bytes, kind: type[nlmsg]) -> Any:
    """The first answer in what was received; None for an acknowledgement. Raises DcbError."""
    length, number, *_ = _unpacked(_HEADER, data)
    if number == NLMSG_ERROR:
        code = -struct.unpack_from("=i", data, _HEADER.size)[0]
        if code:
            raise DcbError(code, os.strerror(code))
        return None
    if number not in (RTM_GETDCB, RTM_SETDCB):
        return None
    answer = kind(data[:length])
    try:
        answer.decode()
    except (NetlinkDecodeError, struct.error) as error:
        raise DcbError(errno.EBADMSG, f"the kernel's answer is not understood: {error}") from error
    return answer
