"""Builds the Go programs that the tests use, once a content; `python -m harness.build [SET…]`.

`all` also builds EPFabric's `images`; `arm64` builds its native code (modules of that name here).

The key of a build is its go.mod, go.sum, flags and Go's version. Results lie in
`$EPFABRIC_CACHE/bin/<set>-<key>` (default `~/.cache/epfabric`), published by a rename.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.process import HarnessError

TESTS = Path(__file__).resolve().parents[1]
KUBERNETES = "1.36.3"
CONTAINERD = "2.4.2"
MINIMUM_GO = (1, 26)
WAIT_SECONDS = 45 * 60.0


@dataclass(frozen=True)
class ProgramSet:
    """Programs of one Go module; a cold build takes about `expected_s` on two cores."""

    name: str
    module: Path
    programs: dict[str, str]  # program → package
    ldflags: str
    tags: str
    expected_s: int


def kubernetes_ldflags() -> str:
    major, minor, _ = KUBERNETES.split(".")
    values = {
        "gitVersion": f"v{KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
        "buildDate": "1970-01-01T00:00:00Z",
    }
    package = "k8s.io/component-base/version"
    return "-s -w " + " ".join(f"-X {package}.{name}={value}" for name, value in values.items())


SETS = {
    "controlplane": ProgramSet(
        name="controlplane",
        module=TESTS / "cluster",
        programs={
            "etcd": "go.etcd.io/etcd/server/v3",
            "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
            "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
            "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        },
        ldflags=kubernetes_ldflags(),
        tags="",
        expected_s=700,
    ),
    "kubelet": ProgramSet(
        name="kubelet",
        module=TESTS / "cluster",
        programs={"kubelet": "k8s.io/kubernetes/cmd/kubelet"},
        ldflags=kubernetes_ldflags(),
        tags="",
        expected_s=70,
    ),
    "containerd": ProgramSet(
        name="containerd",
        module=TESTS / "node" / "containerd",
        programs={
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        ldflags=f"-s -w -X github.com/containerd/containerd/v2/version.Version=v{CONTAINERD}",
        tags="no_btrfs no_zfs no_devmapper",
        expected_s=200,
    ),
    "cni": ProgramSet(
        name="cni",
        module=TESTS / "node" / "cni",
        programs={
            name.rpartition("/")[2]: f"github.com/containernetworking/plugins/plugins/{name}"
            for name in ("ipam/host-local", "main/bridge", "main/loopback")
        },
        ldflags="-s -w",
        tags="",
        expected_s=20,
    ),
    "prometheus": ProgramSet(
        name="prometheus",
        module=TESTS / "telemetry" / "prometheus",
        programs={
            "prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
            "promtool": "github.com/prometheus/prometheus/cmd/promtool",
        },
        ldflags="-s -w",
        tags="remove_all_sd,netgo",
        expected_s=300,
    ),
    "jaeger": ProgramSet(
        name="jaeger",
        module=TESTS / "telemetry" / "jaeger",
        programs={"jaeger": "github.com/jaegertracing/jaeger/cmd/all-in-one"},
        ldflags="-s -w",
        tags="",
        expected_s=430,
    ),
    "kubeconform": ProgramSet(
        name="kubeconform",
        module=TESTS / "chart" / "kubeconform",
        programs={"kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"},
        ldflags="-s -w",
        tags="",
        expected_s=10,
    ),
    "kubescore": ProgramSet(
        name="kubescore",
        module=TESTS / "chart" / "kubescore",
        programs={"kube-score": "github.com/zegl/kube-score/cmd/kube-score"},
        ldflags="-s -w",
        tags="",
        expected_s=70,
    ),
}
CHOICES = (*SETS, "images", "arm64")


def cache() -> Path:
    """The folder for everything that is built or downloaded once."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epfabric"
    return Path(os.environ.get("EPFABRIC_CACHE") or default)


def uv() -> Path:
    """The uv that bootstrap.sh installed."""
    found = next(cache().glob("uv-*/bin/uv"), None)
    if found is None:
        raise HarnessError("there is no uv in the cache: run `bash tests/harness/bootstrap.sh`")
    return found


def programs(name: str) -> dict[str, Path]:
    """Builds the set if need be; returns the path of each program."""
    wanted = SETS[name]
    folder = cache() / "bin" / f"{name}-{key(wanted)}"
    if not folder.is_dir():
        with locked(cache() / "bin" / f"{name}.lock", f"another build of {name}"):
            if not folder.is_dir():
                build(wanted, folder)
    return {program: folder / program for program in wanted.programs}


def key(wanted: ProgramSet) -> str:
    digest = hashlib.sha256()
    for part in (wanted.module / "go.mod", wanted.module / "go.sum"):
        digest.update(part.read_bytes())
    digest.update(repr((wanted.programs, wanted.ldflags, wanted.tags, go_version())).encode())
    return digest.hexdigest()[:16]


def go_version() -> str:
    if shutil.which("go") is None:
        raise HarnessError(f"no `go` on PATH: install Go {dotted(MINIMUM_GO)} or newer")
    text = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < MINIMUM_GO:
        raise HarnessError(f"{text.strip()}: Go {dotted(MINIMUM_GO)} or newer is needed")
    return text.strip()


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def build(wanted: ProgramSet, folder: Path) -> None:
    """Builds into a temporary folder beside `folder`, then renames."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{wanted.name}-", dir=folder.parent))
    begun = time.monotonic()
    try:
        for number, (program, package) in enumerate(wanted.programs.items(), 1):
            minutes = -(-wanted.expected_s // 60)
            say(
                f"building {program} ({number} of {len(wanted.programs)} of {wanted.name}; the set "
                f"takes about {minutes} min on two cores when nothing is cached)"
            )
            compile_program(wanted, package, unfinished / program)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    say(f"{wanted.name} built in {time.monotonic() - begun:.0f} s")


def compile_program(wanted: ProgramSet, package: str, out: Path) -> None:
    command = ["nice", "go", "build", "-trimpath", "-ldflags", wanted.ldflags, "-o", str(out)]
    command += ["-tags", wanted.tags, package] if wanted.tags else [package]
    environ = {**os.environ, "CGO_ENABLED": "0"}
    begun = time.monotonic()
    with subprocess.Popen(
        command, cwd=wanted.module, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as compiler:
        try:
            while True:
                try:
                    output, _ = compiler.communicate(timeout=30)
                    break
                except subprocess.TimeoutExpired:
                    say(f"  still building {out.name}: {time.monotonic() - begun:.0f} s")
                    if time.monotonic() - begun > WAIT_SECONDS:
                        raise HarnessError(f"building {out.name} took too long") from None
        except BaseException:
            compiler.kill()
            raise
    if compiler.returncode != 0:
        end = "\n".join(output.decode(errors="replace").splitlines()[-20:])
        raise HarnessError(f"go build of {package} failed:\n{end}")


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Holds a lock file; says so while it waits, and gives up after WAIT_SECONDS."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - begun
                if waited > WAIT_SECONDS:
                    raise HarnessError(f"{path} is held for over {WAIT_SECONDS:.0f} s") from None
                if int(waited) % 30 == 0:
                    say(f"waiting for {what}: {waited:.0f} s")
                time.sleep(1)
        yield


def say(text: str) -> None:
    print(f"[build] {text}", file=sys.stderr, flush=True)


def everything() -> tuple[str, ...]:
    """All that this user can build and several tiers need; images need root."""
    return (*SETS, "images") if os.geteuid() == 0 else tuple(SETS)


def built(name: str) -> dict[str, Path]:
    from harness import arm64, images  # they use this module

    if name == "images":
        return images.archives()
    return arm64.built().programs if name == "arm64" else programs(name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.build", description=__doc__)
    parser.add_argument("set", nargs="*", metavar="SET", help=f"all, {', '.join(CHOICES)}")
    names = parser.parse_args().set or ["all"]
    if unknown := set(names) - {"all", *CHOICES}:
        parser.error(f"no set {', '.join(sorted(unknown))}; there are all, {', '.join(CHOICES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its compilers end with it
    try:
        for name in everything() if "all" in names else names:
            for program, path in built(name).items():
                print(f"{program}\t{path}", flush=True)
    except HarnessError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
