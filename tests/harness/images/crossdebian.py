"""Debian for arm64 without running any of it, beside the same packages for amd64; for cross.py.

Packages are unpacked, not configured. What their scripts make is text and links, and the same for
both: it is taken from the amd64 tree, where they ran.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.images import debian
from harness.images.buildah import output
from harness.process import HarnessError

ARCHITECTURE = "arm64"
COPY_S = 600.0
DATABASE = Path("var/lib/dpkg")
ARCHIVES = Path("var/cache/apt/archives")
# What depends on the machine though no package owns it, and our own part, which comes later.
LEFT = re.compile(r"/etc/ld\.so\.cache|/var/lib/(dpkg|apt)/.*|/opt/epfabric(/.*)?")
NOT_KEPT = (
    "etc/apt/apt.conf.d/00mmdebstrap",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d/*",
    "etc/hostname",
    "etc/resolv.conf",
    "tmp/*",
    "var/cache/apt/*",
    "var/lib/apt/lists/*",
    "var/log/*",
)
KEPT_RECORDS = ("md5sums", "conffiles")


def packages(root: Path) -> dict[str, str]:
    """Name → version of the packages that are installed in a tree."""
    stanzas = (root / DATABASE / "status").read_text().split("\n\n")
    found = {}
    for stanza in stanzas:
        fields = dict(re.findall(r"(?m)^(Package|Version|Status): (.+)$", stanza))
        if fields.get("Status") == "install ok installed":
            found[fields["Package"]] = fields["Version"]
    return found


def unpack(amd64: Path, target: Path) -> None:
    """Fills the new folder `target`. Raises HarnessError, also where versions differ."""
    wanted = packages(amd64)
    # Names that arm64 has not (libraries for hardware that is x86 only) match nothing.
    names = ",".join(f"?exact-name({name})" for name in sorted(wanted))
    pattern = f"?and(?architecture({ARCHITECTURE}),?or({names}))"
    options = [f"--architectures={ARCHITECTURE}", "--variant=extract", f"--include={pattern}"]
    options += [f"--dpkgopt={option}" for option in debian.LEFT_OUT]
    debian.mmdebstrap([*options, "--skip=cleanup"], target)
    record(target)
    found = packages(target)
    if lost := sorted(set(debian.PACKAGES) - set(found)):
        raise HarnessError(f"Debian's mirror has no {', '.join(lost)} for {ARCHITECTURE}")
    if newer := {n: v for n, v in found.items() if n in wanted and other(v, wanted[n])}:
        raise HarnessError(
            f"Debian's mirror has other versions by now than the base for amd64: {newer}; "
            "delete $EPFABRIC_CACHE/images and build both anew"
        )
    copy(amd64, sorted(made_by_scripts(amd64, target)), target)
    tidy(target)


def other(one: str, two: str) -> bool:
    """Whether two versions have other sources. A rebuild (`+b1`) is of one architecture."""
    return re.sub(r"\+b\d+$", "", one) != re.sub(r"\+b\d+$", "", two)


def record(root: Path) -> None:
    """Writes dpkg's database: these packages are installed, since their scripts' work is done."""
    info = root / DATABASE / "info"
    info.mkdir(parents=True, exist_ok=True)
    stanzas = []
    for archive in sorted((root / ARCHIVES).glob("*.deb")):
        control = output(["dpkg-deb", "--field", str(archive)])
        name = re.findall(r"(?m)^Package: (.+)$", control)[0]
        if re.search(r"(?m)^Multi-Arch: same$", control):
            name += f":{ARCHITECTURE}"
        listed = output(["dpkg-deb", "--contents", str(archive)]).splitlines()
        names = [line.split(None, 5)[5].split(" -> ")[0] for line in listed]
        paths = ["/" + name.removeprefix("./").rstrip("/") for name in names]
        kept = [path for path in paths if os.path.lexists(root / path.lstrip("/"))]
        (info / f"{name}.list").write_text("\n".join(kept) + "\n")
        for kind in KEPT_RECORDS:
            done = subprocess.run(
                ["dpkg-deb", "--info", str(archive), kind], capture_output=True, check=False
            )
            if done.returncode == 0:
                (info / f"{name}.{kind}").write_bytes(done.stdout)
        stanzas.append(control.replace("\n", "\nStatus: install ok installed\n", 1))
    (info / "format").write_text("1\n")
    (root / DATABASE / "arch").write_text(f"{ARCHITECTURE}\n")
    (root / DATABASE / "status").write_text("\n".join(stanzas) + "\n")


def made_by_scripts(amd64: Path, target: Path) -> Iterator[str]:
    """Paths in the amd64 tree that no package owns and that do as well for arm64."""
    owned = set()
    for listing in (amd64 / DATABASE / "info").glob("*.list"):
        for line in listing.read_text().splitlines():
            path = amd64 / line.lstrip("/")
            owned.add(path.parent.resolve() / path.name)
    for path in everything(amd64):
        name = f"/{path.relative_to(amd64)}"
        if path in owned or LEFT.fullmatch(name):
            continue
        if "__pycache__" not in path.parts or compiled_alike(path, amd64, target):
            yield name


def everything(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in (*folders, *files))


def compiled_alike(path: Path, one: Path, other: Path) -> bool:
    """Whether a compiled module's source (for a folder: any) is the same in both trees."""
    if path.is_dir():
        return (other / path.parent.relative_to(one)).is_dir()
    source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    twin = other / source.relative_to(one)
    return source.is_file() and twin.is_file() and source.read_bytes() == twin.read_bytes()


def copy(source: Path, names: list[str], target: Path) -> None:
    """Copies just these paths with owners, modes, links and devices as they are."""
    listed = "\0".join(f".{name}" for name in names)
    packed = subprocess.Popen(
        ["tar", "-C", str(source), "--no-recursion", "--null", "-T", "-", "-cf", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    unpacked = subprocess.Popen(
        ["tar", "-C", str(target), "--keep-directory-symlink", "-xpf", "-"], stdin=packed.stdout
    )
    assert packed.stdin is not None
    packed.stdin.write(listed.encode())
    packed.stdin.close()
    assert packed.stdout is not None
    packed.stdout.close()  # so that the one ends when the other does
    if packed.wait(COPY_S) or unpacked.wait(COPY_S):
        raise HarnessError(f"copying {len(names)} paths from {source} failed")


def tidy(root: Path) -> None:
    """Takes out what mmdebstrap needed: package sources, archives, lists, settings of its run."""
    for pattern in NOT_KEPT:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
