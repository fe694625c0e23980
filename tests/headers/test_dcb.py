"""The agent's dcb netlink messages are those of linux/dcbnl.h, by a program that includes it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from epfabric_agent.nic import dcb
from pyroute2.netlink.rtnl import RTM_GETDCB, RTM_SETDCB

PROGRAM = r"""
#include <linux/dcbnl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>

static unsigned char buffer[4096];
static struct nlmsghdr *head = (struct nlmsghdr *)buffer;

static struct rtattr *add(unsigned type, const void *data, unsigned length) {
  struct rtattr *attribute = (struct rtattr *)(buffer + NLMSG_ALIGN(head->nlmsg_len));
  attribute->rta_type = type;
  attribute->rta_len = RTA_LENGTH(length);
  if (length) memcpy(RTA_DATA(attribute), data, length);
  head->nlmsg_len = NLMSG_ALIGN(head->nlmsg_len) + RTA_ALIGN(attribute->rta_len);
  return attribute;
}

static void close_nest(struct rtattr *nest) {
  nest->rta_len = buffer + head->nlmsg_len - (unsigned char *)nest;
}

static void begin(unsigned type, unsigned cmd, unsigned flags) {
  memset(buffer, 0, sizeof buffer);
  head->nlmsg_type = type;
  head->nlmsg_flags = flags;
  head->nlmsg_seq = 1;
  head->nlmsg_len = NLMSG_LENGTH(sizeof(struct dcbmsg));
  ((struct dcbmsg *)NLMSG_DATA(head))->cmd = cmd;
  add(DCB_ATTR_IFNAME, "eth7", 5);
}

static void show(const char *name) {
  printf("%s ", name);
  for (unsigned i = 0; i < head->nlmsg_len; i++) printf("%02x", buffer[i]);
  printf("\n");
}

int main(void) {
  struct ieee_pfc pfc = {.pfc_cap = 8, .pfc_en = 0x09, .mbc = 1, .delay = 777};
  struct dcb_app dscp = {.selector = IEEE_8021QAZ_APP_SEL_DSCP, .priority = 5, .protocol = 46};
  struct dcb_app fcoe = {.selector = IEEE_8021QAZ_APP_SEL_ETHERTYPE, .priority = 3, .protocol = 1};
  struct rtattr *ieee, *table;
  unsigned char refused = (unsigned char)-95;
  begin(RTM_GETDCB, DCB_CMD_IEEE_GET, NLM_F_REQUEST);
  show("get");
  begin(RTM_SETDCB, DCB_CMD_IEEE_SET, NLM_F_REQUEST | NLM_F_ACK);
  ieee = add(DCB_ATTR_IEEE, 0, 0);
  add(DCB_ATTR_IEEE_PFC, &pfc, sizeof pfc);
  close_nest(ieee);
  show("pfc");
  begin(RTM_SETDCB, DCB_CMD_IEEE_DEL, NLM_F_REQUEST | NLM_F_ACK);
  ieee = add(DCB_ATTR_IEEE, 0, 0);
  table = add(DCB_ATTR_IEEE_APP_TABLE, 0, 0);
  add(DCB_ATTR_IEEE_APP, &dscp, sizeof dscp);
  close_nest(table);
  close_nest(ieee);
  show("del");
  begin(RTM_GETDCB, DCB_CMD_IEEE_GET, 0);
  ieee = add(DCB_ATTR_IEEE, 0, 0);
  add(DCB_ATTR_IEEE_PFC, &pfc, sizeof pfc);
  table = add(DCB_ATTR_IEEE_APP_TABLE, 0, 0);
  add(DCB_ATTR_IEEE_APP, &fcoe, sizeof fcoe);
  add(DCB_ATTR_IEEE_APP, &dscp, sizeof dscp);
  close_nest(table);
  close_nest(ieee);
  show("answer");
  begin(RTM_SETDCB, DCB_CMD_IEEE_SET, 0);
  add(DCB_ATTR_IEEE, &refused, 1);
  show("verdict");
  return 0;
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder: Path = tmp_path_factory.mktemp("dcb")
    (folder / "dcb.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-Wall", "-o", folder / "dcb", folder / "dcb.c"], check=True)
    lines = subprocess.run([folder / "dcb"], check=True, capture_output=True, text=True).stdout
    return {name: bytes.fromhex(data) for name, data in map(str.split, lines.splitlines())}


def answer(data: bytes) -> dcb.DcbMessage:
    found: dcb.DcbMessage = dcb.decode(data, dcb.DcbMessage)
    return found


def test_requests_are_the_headers_bytes(kernels: dict[str, bytes]) -> None:
    assert dcb.request(RTM_GETDCB, dcb.IEEE_GET, "eth7", []) == kernels["get"]
    known = answer(kernels["answer"])
    pfc = dcb.pfc_attribute("1,0,0,1,0,0,0,0", known)
    assert dcb.request(RTM_SETDCB, dcb.IEEE_SET, "eth7", [pfc]) == kernels["pfc"]
    entry = dcb.trust_attribute([(46, 5)])
    assert dcb.request(RTM_SETDCB, dcb.IEEE_DEL, "eth7", [entry]) == kernels["del"]


def test_answers_are_read_as_the_header_lays_them_out(kernels: dict[str, bytes]) -> None:
    found = answer(kernels["answer"])
    assert dcb.pfc_of(found) == "1,0,0,1,0,0,0,0"
    assert dcb.trust_of(found) == "dscp=" + "-" * 46 + "5" + "-" * 17


def test_an_answer_that_is_cut_short_is_a_refusal(kernels: dict[str, bytes]) -> None:
    """With its own length and with the whole one's."""
    whole, refused = kernels["answer"], 0
    for cut in range(len(whole)):
        for length in (cut, len(whole)):
            try:
                found = dcb.decode((struct.pack("=I", length) + whole[4:])[:cut], dcb.DcbMessage)
                dcb.pfc_of(found)
                dcb.trust_of(found)
            except dcb.DcbError:
                refused += 1
    assert refused > len(whole)


def test_a_refusal_is_a_byte_in_the_answer(kernels: dict[str, bytes]) -> None:
    found = dcb.decode(kernels["verdict"], dcb.DcbVerdict)
    assert found is not None
    assert 256 - found.get_attr("DCB_ATTR_IEEE") == 95


def test_the_kernel_understands_and_a_link_without_it_says_so() -> None:
    with pytest.raises(dcb.DcbError) as refused:
        dcb.ask("lo")
    assert dcb.unsupported(refused.value)
    with pytest.raises(dcb.DcbError, match="No such device"):
        dcb.ask("nosuch0")


def test_the_way_between_two_maps_touches_only_what_differs() -> None:
    old = "dscp=" + "0" * 64
    new = "dscp=" + "0" * 46 + "5" + "0" * 17
    assert dcb.trust_changes(old, new) == ([(46, 0)], [(46, 5)])
    assert dcb.trust_changes(new, new) == ([], [])
    assert len(dcb.trust_changes(old, "pcp")[0]) == 64
    assert dcb.trust_changes("pcp", "dscp=" + "-" * 63 + "7") == ([], [(63, 7)])
