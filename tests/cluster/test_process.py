"""Nothing that the harness started outlives it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.process import HarnessError, Processes, wait_until

BOUND_S = 30.0
TESTS = Path(__file__).resolve().parents[1]
STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"

# Children: one that obeys, one with a grandchild in a session of its own, and those of MORE.
HARNESS = """
import signal, sys, time
from harness.process import Processes
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
run = Processes()
breeder = "setsid sleep 1000 & echo $! > grandchild; wait"
pids = [run.start("obeys", ["sleep", "1000"]).pid]
for number, more in enumerate(MORE):
    pids.append(run.start(f"more{number}", ["sh", "-c", more]).pid)
pids.append(run.start("breeder", ["sh", "-c", breeder]).pid)
while not (run.folder / "grandchild").exists() or not (run.folder / "grandchild").read_text():
    time.sleep(0.01)
pids.append(int((run.folder / "grandchild").read_text()))
print(run.folder, *pids, flush=True)
ENDING
"""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def harness(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[subprocess.Popen[str], Path, list[int]]]:
    """A harness in a process of its own, its folder, and the pids that it started."""
    more, ending = request.param
    program = HARNESS.replace("MORE", repr(more)).replace("ENDING", ending)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    folder, *pids = process.stdout.readline().split()
    yield process, Path(folder), [int(pid) for pid in pids]
    process.kill()
    process.wait(BOUND_S)
    process.stdout.close()


def assert_all_gone(folder: Path, pids: list[int]) -> None:
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        left = [pid for pid in pids if alive(pid)]
        if not left and not folder.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"left behind: processes {left}, folder exists: {folder.exists()}")


@pytest.mark.parametrize(
    ("harness", "number"),
    [
        (([STUBBORN], "time.sleep(1000)"), signal.SIGKILL),
        (([], "time.sleep(1000)"), signal.SIGINT),
        (([], "time.sleep(1000)"), signal.SIGTERM),
    ],
    indirect=["harness"],
)
def test_no_process_and_no_folder_outlive_a_killed_harness(
    harness: tuple[subprocess.Popen[str], Path, list[int]], number: signal.Signals
) -> None:
    process, folder, pids = harness
    assert all(alive(pid) for pid in pids)
    process.send_signal(number)
    process.wait(BOUND_S)
    assert_all_gone(folder, pids)


@pytest.mark.parametrize(
    "harness",
    [([], "raise ValueError"), ([], "run.close()"), ([], "sys.exit()")],
    indirect=True,
)
def test_no_process_and_no_folder_outlive_the_end_of_the_program(
    harness: tuple[subprocess.Popen[str], Path, list[int]],
) -> None:
    process, folder, pids = harness
    process.wait(BOUND_S)
    assert_all_gone(folder, pids)


def test_the_last_started_ends_first(tmp_path: Path) -> None:
    record = tmp_path / "order"
    with Processes() as run:
        for name in ("etcd", "apiserver", "scheduler"):
            body = f"trap 'echo {name} >> {record}; exit 0' TERM; touch {tmp_path}/{name}; "
            run.start(name, ["sh", "-c", body + "while :; do sleep 0.05; done"])
            wait_until((tmp_path / name).exists, BOUND_S, f"{name} sets its trap")
    assert record.read_text().split() == ["scheduler", "apiserver", "etcd"]


def test_a_program_that_does_not_exist_is_named() -> None:
    with Processes() as run, pytest.raises(HarnessError, match="no-such-program"):
        run.start("nothing", ["no-such-program"])


def test_a_wait_for_a_dead_program_shows_the_end_of_its_log() -> None:
    with Processes() as run:
        process = run.start("fails", ["sh", "-c", "echo the port is taken; exit 3"])
        with pytest.raises(HarnessError, match=r"(?s)code 3.*the port is taken"):
            wait_until(lambda: False, BOUND_S, "it is ready", process)


def test_a_wait_that_is_over_shows_the_end_of_the_log() -> None:
    with Processes() as run:
        process = run.start("hangs", ["sh", "-c", "echo still reading; sleep 1000"])
        wait_until(lambda: "still" in process.tail(), BOUND_S, "it speaks", process)
        with pytest.raises(HarnessError, match=r"(?s)not within.*still reading"):
            wait_until(lambda: False, 0.2, "it is ready", process)


def test_exit_codes_and_signals_are_told() -> None:
    with Processes() as run:
        assert run.start("seven", ["sh", "-c", "exit 7"]).wait(BOUND_S) == 7
        assert run.start("sleeps", ["sleep", "1000"]).stop() == -signal.SIGTERM
