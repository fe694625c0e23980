"""What a pod installs: a pure wheel with the headers, that drags nothing of the node along."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from harness.build import uv

ROOT = Path(__file__).resolve().parents[3]
NOT_IN_A_POD = ["epfabric_agent", "epfabric_host", "epfabric_crds", "cuda", "torch", "grpc"]


def test_importing_the_library_loads_no_cuda_and_nothing_of_the_node() -> None:
    program = (
        "import sys, threading\n"
        "before = set(sys.modules)\n"  # a .pth of cuda-bindings makes a bare `cuda` at each start
        "import epfabric\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        f"print([m for m in {NOT_IN_A_POD} if m in loaded], threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["[]", "1"]


def test_the_rank_program_never_imports_the_agent() -> None:
    done = subprocess.run(
        [sys.executable, "-v", str(ROOT / "examples/moe_rank.py"), "--help"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "import 'moe_plan'" in done.stderr
    assert "import 'epfabric_agent" not in done.stderr


def test_the_wheel_is_pure_and_carries_the_headers(tmp_path: Path) -> None:
    subprocess.run(
        [str(uv()), "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT / "kernels")],
        capture_output=True, timeout=120, check=True, env={**os.environ, "UV_NO_PROGRESS": "1"},
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    headers = list((ROOT / "kernels/epfabric/include/epfabric").iterdir())
    assert {header.suffix for header in headers} == {".h", ".cuh"}
    for header in headers:
        assert f"epfabric/include/epfabric/{header.name}" in names
    assert "epfabric/py.typed" in names
    assert not [n for n in names if n.startswith("epfabric_host") or n.endswith(".so")]
