"""What the README shows of the library runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .core_agent import CoreAgent

README = Path(__file__).resolve().parents[3] / "README.md"
WORLD_SIZE = 3
BOUND_S = 60


def test_the_example_passes_each_rank_its_neighbours_data(tmp_path: Path) -> None:
    found = re.search(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)
    assert found is not None, "no Python example in the README"
    look = 'print(region.view(4096, (256,), "float32").sum() / 256)'
    program = f"{found[1]}    {look}\n"
    with CoreAgent(tmp_path, WORLD_SIZE) as agent:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                env={
                    "PATH": os.environ["PATH"],
                    "RANK": str(rank),
                    "WORLD_SIZE": str(WORLD_SIZE),
                    "EPFABRIC_SOCKET": agent.path,
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(WORLD_SIZE)
        ]
        outputs = [rank.communicate(timeout=BOUND_S)[0].strip() for rank in ranks]
        agent.wait_for_ends()
    assert outputs == ["2.0", "0.0", "1.0"]
