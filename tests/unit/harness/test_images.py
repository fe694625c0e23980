"""What decides how images are built: mirrors, settings that a build sees, what makes a key."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness.images import content, crossdebian, crosspython, debian, host
from harness.process import HarnessError

LISTED = """\
http://mirror.example/debian/|bookworm|bookworm|main|Debian
http://mirror.example/debian/|bookworm-updates|bookworm-updates|main|Debian
http://mirror.example/debian-security/|bookworm-security|bookworm-security|main|Debian
http://mirror.example/debian/|bookworm-backports|bookworm-backports|main|Debian
http://mirror.example/debian/|bookworm|bookworm|non-free|Debian
http://other.example/|stable|stable|main|Other
"""


def test_host_mirror_is_asked_for_the_images_release_and_its_updates() -> None:
    lines = [source.line("/k.gpg") for source in debian.sources(LISTED)]
    assert lines == [
        "deb [signed-by=/k.gpg] http://mirror.example/debian-security/ trixie-security main",
        "deb [signed-by=/k.gpg] http://mirror.example/debian/ trixie main",
        "deb [signed-by=/k.gpg] http://mirror.example/debian/ trixie-updates main",
    ]


def test_machine_without_a_debian_mirror_is_told_what_to_do() -> None:
    with pytest.raises(HarnessError, match="run `apt-get update`"):
        debian.sources("http://other.example/|stable|stable|main|Other\n")


def test_build_sees_how_to_fetch_and_nothing_else_of_the_environment() -> None:
    environment = {
        "PIP_INDEX_URL": "https://index.example/simple",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "https_proxy": "http://proxy.example:3128",
        "SSL_CERT_FILE": "/etc/ssl/own.pem",
        "UV_CACHE_DIR": "/home/me/.cache",
        "UV_PYTHON": "3.11",
        "PIP_CACHE_DIR": "/home/me/.cache",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PATH": "/bin",
    }
    chosen = host.settings(
        environment, "[global]\nindex-url = https://other.example\ntimeout = 9\n"
    )
    assert chosen == {
        "PIP_INDEX_URL": "https://index.example/simple",  # pip's own rule: variable before file
        "PIP_TIMEOUT": "9",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "https_proxy": "http://proxy.example:3128",
        "SSL_CERT_FILE": "/etc/ssl/own.pem",
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name in (*content.EVERY_IMAGE, "crds/a.py", "operator/b.py", "kernels/epfabric/c.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    (tmp_path / "crds" / "a.pyc").write_text("noise")
    return tmp_path


def test_image_is_built_from_its_parts_and_without_what_git_ignores(tree: Path) -> None:
    assert set(content.files(tree, "operator")) == {
        *content.EVERY_IMAGE,
        "crds/a.py",
        "operator/b.py",
    }


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        ("crds/a.py", True),
        ("Dockerfile", True),
        ("crds/new.py", True),
        ("kernels/epfabric/c.h", False),
        ("uv.lock", False),  # what the target installs of it is in the key by itself
    ],
)
def test_key_follows_what_goes_into_the_image(tree: Path, change: str, matters: bool) -> None:
    before = content.key(tree, content.files(tree, "operator"), "same")
    (tree / change).write_text("changed")
    assert (content.key(tree, content.files(tree, "operator"), "same") != before) is matters


def test_mode_of_a_program_is_part_of_the_key(tree: Path) -> None:
    before = content.key(tree, content.files(tree, "operator"), "same")
    (tree / "crds" / "a.py").chmod(0o755)
    assert content.key(tree, content.files(tree, "operator"), "same") != before


def test_context_does_not_depend_on_the_checkouts_umask(tree: Path, tmp_path: Path) -> None:
    (tree / "crds" / "a.py").chmod(0o600)
    names = content.files(tree, "operator")
    context = tmp_path / "context"
    context.mkdir()
    content.copy(tree, names, context)
    assert (context / "crds" / "a.py").stat().st_mode & 0o777 == 0o644
    assert sorted(str(p.relative_to(context)) for p in context.rglob("*") if p.is_file()) == names


def test_stage_for_tools_takes_the_version_of_uv_that_the_setup_installs() -> None:
    root = Path(__file__).resolve().parents[3]
    version = next(
        line.partition("=")[2]
        for line in (root / "tests/harness/bootstrap.sh").read_text().splitlines()
        if line.startswith("UV_VERSION=")
    )
    assert f"ARG UV_VERSION={version}\n" in (root / "Dockerfile").read_text()


def test_only_a_rebuild_of_one_architecture_counts_as_the_same_version() -> None:
    assert not crossdebian.other("3.11-4+b1", "3.11-4")
    assert not crossdebian.other("3.11-4+b1", "3.11-4+b2")
    assert crossdebian.other("3.11-4", "3.11-5")
    assert crossdebian.other("3.11-4+b1+deb13u1", "3.11-4")


LOCKED = """\
charset-normalizer==3.5.3 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
numpy==2.5.5 ; python_version >= "3.12" \\
    --hash=sha256:cc
pyyaml==6.0.4 \\
    --hash=sha256:dd
"""


@pytest.mark.parametrize(
    ("info", "last"),
    [("charset_normalizer-3.5.3", "bb"), ("numpy-2.5.5", "cc"), ("PyYAML-6.0.4", "dd")],
)
def test_a_wheel_for_arm64_is_pinned_by_the_locks_digests(info: str, last: str) -> None:
    found = crosspython.pinned(LOCKED, Path(f"{info}.dist-info"))
    assert found.count("==") == 1
    assert found.endswith(f"--hash=sha256:{last}")


def test_a_distribution_that_the_lock_has_not_is_refused() -> None:
    for info in ("numpy-2.5.4", "num-2.5.5"):
        with pytest.raises(HarnessError, match="lock has no num"):
            crosspython.pinned(LOCKED, Path(f"{info}.dist-info"))


def test_second_build_repeats_every_stage_that_builds_ours() -> None:
    """A stage without the argument comes from the layers of the first build: equal to itself."""
    text = (Path(__file__).parents[3] / "Dockerfile").read_text()
    stages = re.findall(r"(?ms)^FROM tools AS (build-\w+)\n(.*?)(?=^FROM )", text)
    assert {name for name, _ in stages} == {f"build-{target}" for target in content.FOLDERS}
    assert [name for name, body in stages if not body.startswith("ARG AGAIN\nRUN ")] == []
