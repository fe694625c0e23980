"""Prepares folders inside an image's build, alike on every build; the Dockerfile calls it.

`python3 prepare.py STEP …` with Debian's own python3: nothing is installed for it.
"""

from __future__ import annotations

import ast
import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

# What installers leave behind: times, paths of the building machine, logs.
NOISE = ("uv_cache.json", "direct_url.json")
DEBIAN_NOISE = (
    "var/log",
    "var/cache/apt",
    "var/cache/debconf",
    "var/cache/ldconfig",
    "var/lib/apt/lists",
    "var/lib/dpkg/status-old",
    "var/lib/systemd",
    "etc/machine-id",
    "etc/hostname",
    "etc/resolv.conf",
)
CSI_PROGRAM = "epfabric_agent.csi.main"
LAUNCHER = """#!{python}
import sys
from epfabric_agent.csi.main import main

sys.exit(main())
"""


def build_requirements(folders: list[Path]) -> list[str]:
    """What the parts' pyproject.toml files pin for building them."""
    found: set[str] = set()
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        found |= set(project["build-system"]["requires"])
    return sorted(found)


def csi(agent: Path, environment: Path) -> None:
    """Puts the driver's modules, its version and its program into `environment`."""
    site = next(environment.glob("lib/python3.*/site-packages"))
    for source in sorted(imported(agent, CSI_PROGRAM)):
        target = site / source.relative_to(agent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    project = tomllib.loads((agent / "pyproject.toml").read_text())["project"]
    info = site / f"epfabric_agent-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}: the driver alone\nLicense: {project['license']}\n"
    )
    program = environment / "bin" / "epfabric-csi"
    program.write_text(LAUNCHER.format(python=environment / "bin" / "python"))
    program.chmod(0o755)
    subprocess.run([environment / "bin" / "python", "-c", f"import {CSI_PROGRAM}"], check=True)


def imported(root: Path, module: str) -> set[Path]:
    """The files below root that `module` imports at any depth, with their packages, and its own."""
    found: set[Path] = set()
    wanted = [module]
    while wanted:
        parts = wanted.pop().split(".")
        files = [root.joinpath(*parts[:n], "__init__.py") for n in range(1, len(parts) + 1)]
        files.append(root.joinpath(*parts).with_suffix(".py"))
        for path in (path for path in files if path.is_file() and path not in found):
            found.add(path)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    wanted += [name.name for name in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    wanted += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return found


def finish(environment: Path) -> None:
    """Leaves in a virtual environment only what depends on what was installed."""
    for path in sorted(environment.rglob("*")):
        if path.name in NOISE:
            path.unlink()
    for record in environment.glob("lib/python3.*/site-packages/*.dist-info/RECORD"):
        # A line on uv_cache.json would stay, with the digest of what held the time of the build.
        kept = [
            line for line in lines(record) if line.partition(",")[0].split("/")[-1] not in NOISE
        ]
        record.write_text("".join(kept))
    for path in environment.glob("bin/*"):
        if path.name.startswith(("activate", "deactivate", "pydoc")):
            path.unlink()
    for name in (".lock", "CACHEDIR.TAG", ".gitignore"):
        (environment / name).unlink(missing_ok=True)
    site = next(environment.glob("lib/python3.*/site-packages"))
    # pyverbs comes with Debian's rdma-core, behind all that is installed here.
    (site / "debian.pth").write_text("/usr/lib/python3/dist-packages\n")
    compile_all(environment / "lib")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def debian(root: Path) -> None:
    """Takes logs, caches and the like from a Debian tree, and compiles its Python modules anew."""
    for name in DEBIAN_NOISE:
        path = root / name
        if path.is_dir() and not path.is_symlink():
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        else:
            path.unlink(missing_ok=True)
    for path in root.glob("var/backups/*"):
        path.unlink()
    for folder in ("usr/lib/python3", "usr/share/python3", *root.glob("usr/lib/python3.*")):
        compile_all(root / folder)


def compile_all(folder: Path) -> None:
    """Compiled modules that hold neither times nor paths of a build, so that a start is quick."""
    for cache in sorted(folder.rglob("__pycache__")):
        shutil.rmtree(cache)
    compileall.compile_dir(
        folder,
        maxlevels=30,
        quiet=2,
        force=True,
        workers=1,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def main(words: list[str]) -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of constants in a compiled module follows the seed.
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    step, *paths = words or [""]
    folders = [Path(path) for path in paths]
    if step == "build-requirements":
        print("\n".join(build_requirements(folders)))
    elif step == "csi":
        csi(*folders)
    elif step == "finish":
        finish(*folders)
    elif step == "debian":
        debian(*folders)
    else:
        print(
            "build-requirements FOLDER… | csi AGENT ENVIRONMENT | finish ENVIRONMENT | debian ROOT"
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
