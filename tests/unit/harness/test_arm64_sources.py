"""What is cross-built for arm64 finds in its copy of the tree all that it includes by a path."""

from __future__ import annotations

import re

from harness import arm64

OTHERS = re.compile(r'^#include "(\.\./[^"]+)"', re.MULTILINE)


def test_no_file_that_another_one_includes_stays_behind() -> None:
    taken = {path.resolve() for path in arm64.sources()}
    wanted = {
        (path.parent / name).resolve()
        for path in taken
        for name in OTHERS.findall(path.read_text())
    }
    assert wanted, "nothing is included by a path: look for it otherwise"
    assert wanted <= taken, sorted(wanted - taken)
