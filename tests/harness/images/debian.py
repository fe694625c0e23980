"""Debian 13 by the mirror that this machine's apt uses, and the images' base made from it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.build import cache, say
from harness.images.buildah import output, run
from harness.process import HarnessError

SUITE = "trixie"
PACKAGES = ("ca-certificates", "python3")
KEYRINGS = Path("/usr/share/keyrings")
EPOCH = "0"
# An image needs no manual pages and no translations; the licences stay.
LEFT_OUT = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)
FORMAT = "$(REPO_URI)|$(RELEASE)|$(CODENAME)|$(COMPONENT)|$(ORIGIN)"


@dataclass(frozen=True)
class Source:
    """One line of a sources.list: where packages of a suite come from."""

    uri: str
    suite: str
    components: tuple[str, ...]

    def line(self, keyring: str) -> str:
        return f"deb [signed-by={keyring}] {self.uri} {self.suite} {' '.join(self.components)}"


def sources(targets: str, suite: str = SUITE) -> list[Source]:
    """The host's Debian sources, asked for another release. `targets`: lines by FORMAT."""
    found: dict[tuple[str, str], set[str]] = {}
    for line in targets.splitlines():
        uri, _, codename, component, origin = line.strip().split("|")
        if origin != "Debian" or component != "main":
            continue
        extension = re.sub(r"^[a-z]+", "", codename)
        if extension in ("", "-updates", "-security"):
            found.setdefault((uri, suite + extension), set()).add(component)
    if not any(name == suite for _, name in found):
        raise HarnessError(
            "apt knows no Debian mirror (`apt-get indextargets` names none): run `apt-get update`"
        )
    return [Source(uri, name, tuple(sorted(c))) for (uri, name), c in sorted(found.items())]


def host_sources() -> list[Source]:
    return sources(output(["apt-get", "indextargets", "--format", FORMAT, "Created-By: Packages"]))


def keyring() -> bytes:
    """The public keys of the release, as Debian ships them."""
    files = sorted(KEYRINGS.glob(f"debian-archive-{SUITE}-*.gpg"))
    if not files:
        raise HarnessError(f"{KEYRINGS} has no keys of Debian {SUITE}: apt-get upgrade brings them")
    return b"".join(path.read_bytes() for path in files)


def base_key(prepare: Path) -> str:
    """What goes into the base, but for the packages' versions: those are of the day it is made."""
    digest = hashlib.sha256(prepare.read_bytes())
    digest.update(repr((SUITE, PACKAGES, LEFT_OUT)).encode())
    return digest.hexdigest()[:16]


def base(prepare: Path) -> Path:
    """The base as a tar archive in the cache; made by mmdebstrap where it is not there."""
    archive = cache() / "images" / f"base-{SUITE}-{base_key(prepare)}.tar"
    if archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    say(f"making the images' base, Debian {SUITE}, from packages (about a minute)")
    with tempfile.TemporaryDirectory(prefix=".base-", dir=archive.parent) as folder:
        made = Path(folder, "base.tar")
        options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
        options += [f"--dpkgopt={option}" for option in LEFT_OUT]
        options += [
            f'--customize-hook=copy-in "{prepare}" /tmp',
            f'--customize-hook=chroot "$1" python3 /tmp/{prepare.name} debian /',
            # What the building machine takes packages from is nobody else's business.
            f'--customize-hook=rm -rf "$1/tmp/{prepare.name}" "$1"/etc/apt/sources.list*/* '
            '"$1/etc/apt/sources.list"',
        ]
        mmdebstrap(options, made)
        made.rename(archive)
    return archive


def mmdebstrap(options: list[str], target: Path) -> None:
    """Makes a Debian tree or archive from the host's mirror."""
    with tempfile.NamedTemporaryFile(suffix=".gpg") as ring:
        ring.write(keyring())
        ring.flush()
        os.chmod(ring.name, 0o644)  # apt's own user reads it
        lines = [source.line(ring.name) for source in host_sources()]
        command = ["mmdebstrap", *options, SUITE, str(target), *lines]
        run(command, f"making {target.name} from Debian's packages", {"SOURCE_DATE_EPOCH": EPOCH})


def write_apt_settings(folder: Path, seen_as: str) -> None:
    """Writes apt.conf, apt.list and keys.gpg that apt in a build reads as `seen_as`/…"""
    (folder / "keys.gpg").write_bytes(keyring())
    lines = [source.line(f"{seen_as}/keys.gpg") for source in host_sources()]
    (folder / "apt.list").write_text("\n".join(lines) + "\n")
    kept = []
    for line in output(["apt-config", "dump"]).splitlines():
        found = re.match(r'Acquire::(http|https|Retries|ForceIPv4)\b.* "(.*)";$', line)
        if found and found[2]:
            kept.append(line)
            if os.path.isfile(found[2]):
                shutil.copy(found[2], folder)
                kept[-1] = line.replace(found[2], f"{seen_as}/{Path(found[2]).name}")
    for name in ("auth.conf",):
        whole = b"\n".join(
            path.read_bytes() for path in [Path("/etc/apt", name), *auth_parts()] if path.is_file()
        )
        (folder / name).write_bytes(whole)
    kept += [
        f'Dir::Etc::SourceList "{seen_as}/apt.list";',
        'Dir::Etc::SourceParts "-";',
        f'Dir::Etc::netrc "{seen_as}/auth.conf";',
        'APT::Sandbox::User "root";',
    ]
    (folder / "apt.conf").write_text("\n".join(kept) + "\n")


def auth_parts() -> list[Path]:
    return sorted(Path("/etc/apt/auth.conf.d").glob("*.conf"))


def has_overlay(folder: Path) -> bool:
    """Whether a file system of `folder` can carry an overlay; a full copy a layer is slow."""
    with tempfile.TemporaryDirectory(dir=folder) as trial:
        parts = [Path(trial, name) for name in ("lower", "upper", "work", "merged")]
        for part in parts:
            part.mkdir()
        lower, upper, work, merged = map(str, parts)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        done = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", options, merged],
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            subprocess.run(["umount", merged], check=True)
        return done.returncode == 0
