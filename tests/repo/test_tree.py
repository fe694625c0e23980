"""The tree keeps to its own rules: sizes, words, what may be committed."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = {".py", ".h", ".cc", ".cuh", ".cu", ".go", ".sh"}
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
MAX_BYTES = 1_000_000
FORBIDDEN_NAMES = {"utils", "common", "helpers", "manager", "util", "helper"}
# Written in pieces, so that this file does not hold them.
FORBIDDEN_TEXT = [
    r"/work" + r"/",
    r"\b(proxy\.golang|docker|quay|ghcr|gcr|registry\.k8s)" + r"\.(org|io)\b",
    r"\bTO" + r"DO\b|\bFIX" + r"ME\b|\bXX" + r"X\b",
]


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def sources() -> list[Path]:
    found = [p for p in tracked() if p.suffix in SOURCE and not GENERATED.search(p.name)]
    assert len(found) > 20, "the tree's sources were not found"
    return found


def test_no_source_file_is_too_long_to_read() -> None:
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := line_count(p)) > MAX_FILE_LINES}
    assert not long, f"over {MAX_FILE_LINES} lines, split by what they are about: {long}"


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_python_function_is_too_long_to_read() -> None:
    long = []
    for path in sources():
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {lines}")
    assert not long, f"over {MAX_FUNCTION_LINES} lines: {long}"


def test_every_python_module_says_what_it_is_for() -> None:
    silent = []
    for path in sources():
        text = path.read_text() if path.suffix == ".py" else ""
        if text and not ast.get_docstring(ast.parse(text)):
            silent.append(str(path.relative_to(ROOT)))
    assert not silent, f"no docstring at the top: {silent}"


def test_no_file_has_a_name_that_says_nothing() -> None:
    vague = [str(p.relative_to(ROOT)) for p in tracked() if p.stem in FORBIDDEN_NAMES]
    assert not vague


def test_nothing_large_or_binary_is_committed() -> None:
    wrong = []
    for path in tracked():
        data = path.read_bytes()
        if len(data) > MAX_BYTES or b"\0" in data[:8000]:
            wrong.append(f"{path.relative_to(ROOT)} ({len(data)} bytes)")
    assert not wrong


@pytest.mark.parametrize("pattern", FORBIDDEN_TEXT)
def test_no_file_names_what_it_should_not(pattern: str) -> None:
    found = []
    for path in tracked():
        if path.name == "uv.lock" or path.suffix in {".sum"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found


def test_every_make_target_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert targets
    assert not [t for t in targets if t != "help" and f"make {t}" not in readme]


def test_lint_types_layers_and_formatting_hold() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_fixtures_of_a_package_stand_in_one() -> None:
    """Elsewhere pytest keeps them, and what they started, until the whole run ends."""
    mark = 'scope="pack' + 'age"'
    alone = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.suffix == ".py"
        and mark in path.read_text()
        and not path.with_name("__init__.py").is_file()
    ]
    assert not alone, f"add an __init__.py beside: {alone}"
