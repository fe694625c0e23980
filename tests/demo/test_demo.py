"""The demo in small, as a newcomer starts it: it ends with DEMO OK, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

import pytest
from harness import cgroups
from harness.node.wires import Plan

TESTS = Path(__file__).resolve().parents[1]
RUN_SECONDS = 500.0
END_SECONDS = 90.0

pytestmark = pytest.mark.timeout(900)


class Run:
    """A demo in a process of its own; remembers every process that ever descended from it."""

    def __init__(self, folder: Path) -> None:
        path = f"{TESTS}:{TESTS.parent / 'examples'}"
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.demo", "--small"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed_interrupts,
        )
        self.descendants: set[tuple[int, int]] = set()
        self.lines: list[str] = []
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._watch)]

    def __enter__(self) -> Run:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end.set()
        self.process.kill()
        self.process.wait(END_SECONDS)
        for thread in self._threads:
            thread.join(END_SECONDS)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def await_text(self, text: str) -> None:
        deadline = time.monotonic() + RUN_SECONDS
        while text not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.1)

    def left(self) -> list[int]:
        """Descendants that run; waits a while for the last of them to end."""
        deadline = time.monotonic() + END_SECONDS
        while True:
            running = {(pid, stat.started) for pid, stat in processes().items()}
            left = [pid for pid, _ in self.descendants & running]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.2)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            self.lines.extend(iter(output.readline, ""))

    def _watch(self) -> None:
        while not self._end.wait(0.25):
            now = processes()
            # Only those that are the same processes still: numbers are used again.
            running = {(pid, stat.started) for pid, stat in now.items()}
            family = {self.process.pid} | {pid for pid, _ in self.descendants & running}
            while found := {p for p, s in now.items() if s.parent in family and p not in family}:
                family |= found
                self.descendants |= {(pid, now[pid].started) for pid in found}


def heed_interrupts() -> None:
    """Tests that were started in the background ignore Ctrl-C, and what they start would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Stat:
    """What /proc says of a process that is no zombie."""

    def __init__(self, text: str) -> None:
        fields = text.rpartition(")")[2].split()
        self.zombie = fields[0] == "Z"
        self.parent = int(fields[1])
        self.started = int(fields[19])


def processes() -> dict[int, Stat]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = Stat((entry / "stat").read_text())
            except OSError:
                continue
            if not stat.zombie:
                found[int(entry.name)] = stat
    return found


def assert_clean(run: Run, kept: set[str]) -> None:
    assert run.descendants
    assert run.left() == []
    assert {path.name for path in run.folder.iterdir()} == kept
    assert str(run.folder) not in Path("/proc/self/mountinfo").read_text()
    if site := re.search(r"https://10\.(\d+)\.255\.1:443, kubeconfig \S*/([^/]+)/admin", run.text):
        groups = [top / site[2] for top in cgroups.hierarchies()]
        link = Path("/sys/class/net", Plan(int(site[1])).link)
        assert [path for path in [*groups, link] if path.exists()] == []


def test_the_demo_ends_with_its_tables_and_leaves_nothing(tmp_path: Path) -> None:
    """Another user's files lie in the temporary folder; they stay as they are."""
    for name in ("epfabric", "epfabric-demo-", "epfabric-demo-0"):
        foreign = tmp_path / name
        foreign.write_text("not yours")
        os.chown(foreign, 12345, 12345)
        foreign.chmod(0o400)
    with Run(tmp_path) as run:
        code = run.process.wait(RUN_SECONDS)
        assert_clean(run, {"epfabric", "epfabric-demo-", "epfabric-demo-0"})
    assert code == 0, run.text
    assert run.text.rstrip().endswith("DEMO OK")
    for part in ("Barrier latency by phase", "Commands per second", "Bytes per pair", "last most"):
        assert part in run.text
    assert (tmp_path / "epfabric").read_text() == "not yours"


@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [
        ("are up", signal.SIGINT, 130),
        ("a shell on node-0", signal.SIGINT, 130),
        ("admission added", signal.SIGKILL, -9),
    ],
)
def test_a_demo_that_is_ended_early_leaves_nothing(
    tmp_path: Path, moment: str, number: signal.Signals, code: int
) -> None:
    with Run(tmp_path) as run:
        run.await_text(moment)
        run.process.send_signal(number)
        assert run.process.wait(END_SECONDS) == code, run.text
        assert_clean(run, set())
