"""Runs the FIFO and the orders beside it under C++'s whole memory model, and breaks each once.

A mutation is a change of text in a copy of the headers: what it changes has to be there, so that
the table in docs/fifo.md cannot fall behind the code.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(__file__).parent / "model"
INCLUDES = {"abi": ROOT / "kernels/epfabric/include", "agent": ROOT / "agent/native"}
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
FIFO, PLATFORM, RING = "abi/epfabric/fifo.h", "abi/epfabric/platform.h", "agent/ring.h"


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in a header; then `model` says `why` something is wrong."""

    name: str
    header: str
    changes: tuple[tuple[str, str], ...]
    model: str
    why: str


def weaker(name: str, header: str, old: str, new: str, model: str, why: str) -> Mutation:
    return Mutation(name, header, ((old, new),), model, why)


RELEASE_FENCE = "__atomic_thread_fence(__ATOMIC_RELEASE)"
ACQUIRE_FENCE = "__atomic_thread_fence(__ATOMIC_ACQUIRE)"
RELAXED_FENCE = "__atomic_thread_fence(__ATOMIC_RELAXED)"
BOTH_LAPS = "((lo ^ lap) | (hi ^ lap))"
MUTATIONS = (
    weaker("producer's fence", PLATFORM, RELEASE_FENCE, RELAXED_FENCE, "fifo", "older payload"),
    weaker("proxy's fence", PLATFORM, ACQUIRE_FENCE, RELAXED_FENCE, "fifo", "older payload"),
    Mutation(
        "lap bit in the first half only",
        FIFO,
        (("commands[i].hi | lap", "commands[i].hi"), (BOTH_LAPS, "(lo ^ lap)")),
        "fifo",
        "was taken with halves of 0 and",
    ),
    Mutation(
        "lap bit in the second half only",
        FIFO,
        (("commands[i].lo | lap", "commands[i].lo"), (BOTH_LAPS, "(hi ^ lap)")),
        "fifo",
        "was taken with a half of before",
    ),
    Mutation(
        "one slot more than there are",
        FIFO,
        (
            (
                "if (head + count - cached_tail > depth) {",
                "if (head + count - cached_tail > depth + 1) {",
            ),
            (
                "if (head + count - cached_tail > depth) return",
                "if (head + count - cached_tail > depth + 1) return",
            ),
        ),
        "fifo",
        "was pushed and is not there",
    ),
    weaker(
        "completed stored without release",
        RING,
        "platform::store_release(&shared_->completed,",
        "platform::store_relaxed(&shared_->completed,",
        "fifo",
        "newer payload",
    ),
    weaker(
        "a wait that loads without acquire",
        FIFO,
        "platform::load_acquire(word) >= value",
        "platform::load_relaxed(word) >= value",
        "fifo",
        "newer payload",
    ),
    weaker(
        "a signal's reader without acquire",
        FIFO,
        "platform::load_acquire(word) >= value",
        "platform::load_relaxed(word) >= value",
        "orders",
        "a signal before its payload",
    ),
    weaker(
        "a release store that is none",
        PLATFORM,
        "__atomic_store_n(word, value, __ATOMIC_RELEASE)",
        "__atomic_store_n(word, value, __ATOMIC_RELAXED)",
        "orders",
        "a refusal without its reason",
    ),
    weaker(
        "refused stored without release",
        RING,
        "platform::store_release(&shared_->refused,",
        "platform::store_relaxed(&shared_->refused,",
        "orders",
        "a refusal without its reason",
    ),
    weaker(
        "retired stored without release",
        RING,
        "retired_.store(retired, std::memory_order_release)",
        "retired_.store(retired, std::memory_order_relaxed)",
        "orders",
        "a barrier was entered before a write was done",
    ),
    weaker(
        "retired loaded without acquire",
        RING,
        "retired_.load(std::memory_order_acquire)",
        "retired_.load(std::memory_order_relaxed)",
        "orders",
        "a barrier was entered before a write was done",
    ),
    *(
        weaker(
            f"{name} without {order}",
            "agent/meeting.h",
            f"{call}std::memory_order_{order})",
            f"{call}std::memory_order_relaxed)",
            "orders",
            "what was written before a barrier is not there after it",
        )
        for name, order, call in (
            ("a rank enters", "release", "seat.entered.store(number + 1, "),
            ("the delegate sees who entered", "acquire", "seats_[position].entered.load("),
            ("the delegate releases", "release", "released_.store(number + 1, "),
            ("a rank sees the release", "acquire", "released_.load("),
        )
    ),
)


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exploration, compiled once."""
    out = tmp_path_factory.mktemp("model") / "memory_model.o"
    compiled = ["g++", *FLAGS, "-O2", "-c", str(MODEL / "memory_model.cc"), "-o", str(out)]
    subprocess.run(compiled, check=True, timeout=120)
    return out


def run(model: str, checker: Path, headers: dict[str, Path], folder: Path) -> tuple[int, str]:
    """Exit status and output of a model over these headers."""
    program = folder / model
    includes = [f"-I{path}" for path in headers.values()]
    subprocess.run(
        ["g++", *FLAGS, *includes, str(MODEL / f"{model}_model.cc"), str(checker), "-o", program],
        check=True,
        timeout=120,
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("model", ["fifo", "orders"])
def test_every_execution_keeps_what_is_claimed(model: str, checker: Path, tmp_path: Path) -> None:
    code, said = run(model, checker, INCLUDES, tmp_path)
    print(said)
    assert code == 0, said


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_weaker_order_is_caught(mutation: Mutation, checker: Path, tmp_path: Path) -> None:
    headers = {name: tmp_path / name for name in INCLUDES}
    for name, path in INCLUDES.items():
        shutil.copytree(path, headers[name], ignore=shutil.ignore_patterns("*.cc"))
    changed = tmp_path / mutation.header
    text = changed.read_text()
    for old, new in mutation.changes:
        assert text.count(old) == 1, f"{mutation.header} does not hold once: {old}"
        text = text.replace(old, new)
    changed.write_text(text)
    code, said = run(mutation.model, checker, headers, tmp_path)
    print(said)
    assert code == 1
    assert "violated" in said
    assert mutation.why in said


def test_the_proof_lists_every_mutation() -> None:
    proof = (ROOT / "docs/fifo.md").read_text()
    missing = [mutation.name for mutation in MUTATIONS if f"| {mutation.name} |" not in proof]
    assert not missing
