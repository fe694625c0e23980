"""Editing a shared header rebuilds what was compiled from it, without anybody asking for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from epfabric.cuda.closure import closure
from harness.build import uv

ROOT = Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "kernels/epfabric/include/epfabric").glob("*.h"))
PROJECTS = ["agent", "kernels/host"]
SOURCES = {"agent": ROOT / "agent/native", "host": ROOT / "kernels/host/src"}

# Stands for the compiler: notes each build and makes an empty wheel.
BACKEND = """
import os, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with open(os.environ["BUILD_LOG"], "a") as log:
        log.write("built\\n")
    name = "probe-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        meta = "probe-1.dist-info/"
        wheel.writestr(meta + "METADATA", "Metadata-Version: 2.1\\nName: probe\\nVersion: 1\\n")
        wheel.writestr(meta + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(meta + "RECORD", "")
    return name

def build_wheel(*arguments):
    return build_editable(*arguments)
"""


def cache_keys(project: str) -> str:
    text = (ROOT / project / "pyproject.toml").read_text()
    return next(line for line in text.splitlines() if line.startswith("cache-keys"))


@pytest.mark.parametrize("project", PROJECTS)
def test_uv_builds_again_after_a_shared_header_changed(project: str, tmp_path: Path) -> None:
    folder = tmp_path / project
    include = tmp_path / "kernels/epfabric/include/epfabric"
    folder.mkdir(parents=True)
    include.mkdir(parents=True)
    for header in HEADERS:
        shutil.copy(header, include)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "probe"\nversion = "1"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f"[tool.uv]\n{cache_keys(project)}\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "root"\nversion = "1"\nrequires-python = ">=3.11"\n'
        'dependencies = ["probe"]\n[tool.uv]\npackage = false\n'
        f'[tool.uv.workspace]\nmembers = ["{project}"]\n'
        "[tool.uv.sources]\nprobe = { workspace = true }\n"
    )
    log = tmp_path / "builds"
    environment = {**os.environ, "BUILD_LOG": str(log), "UV_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("VIRTUAL_ENV", None)
    program = str(uv())

    def builds() -> int:
        done = subprocess.run(
            [program, "--offline", "sync", "--python", sys.executable],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return len(log.read_text().splitlines())

    count = builds()
    assert builds() == count, "it builds although nothing changed, so this test shows nothing"
    for header in HEADERS:
        with (include / header.name).open("a") as text:
            text.write("// changed\n")
        now = builds()
        assert now > count, f"{header.name} changed and {project} was not built again"
        count = now


def included_by(folder: Path) -> list[str]:
    """Shared headers that the sources include, directly or not."""
    shared = HEADERS[0].parent
    sources = [path.read_text() for path in folder.iterdir() if path.suffix in {".cc", ".h"}]
    found = {path for text in sources for path in closure(text, [shared.parent])}
    return sorted(path.name for path in found if path.parent == shared)


@pytest.mark.parametrize("project", SOURCES)
def test_the_build_folder_knows_which_objects_came_from_the_headers(project: str) -> None:
    folder = ROOT / "build" / project
    ninja = shutil.which("ninja")
    if ninja is None or not (folder / ".ninja_deps").exists():
        pytest.skip(f"build/{project} was not made by ninja on this machine")
    known = subprocess.run(
        [ninja, "-C", str(folder), "-t", "deps"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    included = included_by(SOURCES[project])
    assert included, "it includes no shared header, so this test shows nothing"
    missing = [name for name in included if f"epfabric/{name}" not in known]
    assert not missing, f"no object of build/{project} depends on {missing}"
