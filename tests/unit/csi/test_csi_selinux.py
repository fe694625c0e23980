"""Pods' folders carry the label that containers may use, where the node has SELinux."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from epfabric_agent.csi.volumes import SELINUX_ATTRIBUTE, SELINUX_LABEL, make_directory


def label(path: Path) -> bytes | None:
    if SELINUX_ATTRIBUTE not in os.listxattr(path, follow_symlinks=False):
        return None
    return os.getxattr(path, SELINUX_ATTRIBUTE, follow_symlinks=False)


@pytest.mark.parametrize("selinux", [False, True])
def test_a_pods_folder_is_labelled_where_there_is_selinux(tmp_path: Path, selinux: bool) -> None:
    directory = tmp_path / "volume"
    for _ in range(2):  # a repeated publish keeps the inode and the label
        make_directory(directory, selinux)
        assert label(directory) == (SELINUX_LABEL if selinux else None)
    assert SELINUX_LABEL == b"system_u:object_r:container_file_t:s0\0"
