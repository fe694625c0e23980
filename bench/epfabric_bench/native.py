"""Builds the native bench programs and runs them; used by run.py."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from .series import Line, parse_line

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench-native"
BUILD_LIMIT_S = 900


class BenchError(Exception):
    """A bench that could not be built or run; says what to do where that is known."""


def build(say: Callable[[str], None], *programs: str) -> None:
    """All of them where none is named. Quick when nothing changed."""
    say("building the native programs (a minute the first time)")
    source = ROOT / "bench" / "native"
    configure = ["cmake", "-S", str(source), "-B", str(BUILD), "-G", "Ninja"]
    targets = ["--target", *programs] if programs else []
    for command in (configure, ["cmake", "--build", str(BUILD), *targets]):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
        )
        if done.returncode != 0:
            raise BenchError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-6000:]}")


def arguments(options: dict[str, int]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


def run(
    program: str, options: dict[str, int], seconds: float, say: Callable[[str], None]
) -> list[Line]:
    """Runs a program of bench/native; says when a new round begins.

    Raises BenchError where it fails, prints what is no line of samples, or takes over `seconds`.
    """
    command = [str(BUILD / program), *arguments(options)]
    lines: list[Line] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watch = threading.Timer(seconds, process.kill)
        watch.start()
        try:
            assert process.stdout is not None
            for text in process.stdout:
                line = parse_line(text)
                if not lines or line.round != lines[-1].round:
                    say(f"{program}: round {line.round + 1} of {options.get('rounds', '?')}")
                lines.append(line)
            code = process.wait()
        except ValueError as error:
            raise BenchError(f"{program}: {error}") from error
        finally:
            in_time = watch.is_alive()
            watch.cancel()
            process.kill()
    if not in_time:
        raise BenchError(f"{program} took over {seconds:.0f} s and was ended")
    if code != 0 or not lines:
        raise BenchError(f"{program} ended with {code} after {len(lines)} lines of samples")
    return lines
