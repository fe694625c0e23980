"""Each image for arm64: what it holds, and that it starts. Emulated; nothing ran on arm64 itself.

Only when asked for (`make test TIER=arm64`), since it builds each image once more.
"""

from __future__ import annotations

import pytest
from harness import images
from harness.process import Processes
from images.foreign import check_content, check_start

pytestmark = pytest.mark.timeout(1800)  # it builds where nothing is cached


@pytest.mark.parametrize("target", images.TARGETS)
def test_image_for_arm64_is_its_twins_equal_and_starts(target: str) -> None:
    (image,) = images.images([target], "arm64").values()
    check_content(image, images.images([target])[target])
    with Processes("epfabric-arm64-") as processes:
        check_start(image, processes)
