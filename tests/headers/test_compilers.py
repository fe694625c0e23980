"""The shared headers compile for every machine that may push commands: CPU, NVIDIA, AMD."""

import ctypes
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "kernels/epfabric/include"
HEADERS = sorted(p.name for p in (INCLUDE / "epfabric").glob("*.h"))
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
CUDA = INCLUDE.parent / "cuda"
LOW_LATENCY = ["dispatch_bf16", "dispatch_fp8", "combine"]
CHANNELS = ["channels_meet", "channels_dispatch", "channels_combine"]
KERNELS = {
    HERE / "push_kernel.cu": ["push_batch", "push_others", "take_one", "wait_for"],
    HERE / "device_kernel.cu": ["push_shared", "push_owned", "push_atomics", "wait_all"],
    HERE.parent / "gpu/atomics.cu": ["change_words"],
    CUDA / "low_latency.cu": [*LOW_LATENCY, "settle"],
    CUDA / "routing.cu": ["route_tokens"],
    CUDA / "places.cu": ["place_rows", "spread_rows", "sum_rows"],
    CUDA / "channels.cu": CHANNELS,
}

WITHIN_ONE_GPU = {"routing.cu", "places.cu"}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
@pytest.mark.parametrize("header", HEADERS)
def test_gcc_takes_each_header_on_its_own(header: str, standard: str) -> None:
    source = str(HERE / "host_use.cc")
    run("g++", f"-std={standard}", *WARNINGS, "-fsyntax-only", f"-I{INCLUDE}",
        "-include", f"epfabric/{header}", source)  # fmt: skip


class Nvrtc:
    """NVIDIA's run-time compiler, from its wheel; it needs no GPU."""

    def __init__(self) -> None:
        library = Path(str(files("nvidia.cuda_nvrtc") / "lib/libnvrtc.so.12"))
        self._lib = ctypes.CDLL(str(library))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def compile(self, source: Path, *options: str) -> tuple[str, bytes]:
        """PTX, and the machine code of a real architecture (empty for a virtual one)."""
        program = ctypes.c_void_p()
        text = source.read_bytes()
        name = source.name.encode()
        assert not self._lib.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
        flags = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = self._lib.nvrtcCompileProgram(program, len(options), flags)
        assert not status, self._get(program, "ProgramLog").decode()
        return self._get(program, "PTX").decode(), self._get(program, "CUBIN")

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._lib, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw[: size.value].rstrip(b"\0")


def entry(ptx: str, kernel: str) -> str:
    """The text of one kernel."""
    return ptx[ptx.index(f".entry {kernel}(") :].split(".visible")[0]


ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]


def to_ptx(source: Path, architecture: str) -> str:
    nvrtc = Nvrtc()
    assert nvrtc.version >= (12, 8)
    ptx, code = nvrtc.compile(source, f"-arch={architecture}", f"-I{INCLUDE}", "-std=c++20")
    assert code.startswith(b"\x7fELF"), "the assembler saw the PTX of the platform headers"
    assert all(f".entry {kernel}(" in ptx for kernel in KERNELS[source])
    return ptx


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_makes_a_kernel_of_every_device_path(architecture: str) -> None:
    ptx = to_ptx(HERE / "push_kernel.cu", architecture)
    push = entry(ptx, "push_batch")
    assert count(r"fence\.acq_rel\.sys", push) == 1, "the fence is paid once a batch"
    assert count(r"st\.relaxed\.sys(\.global)?\.v2\.[ub]64", push), "a slot is one 16-byte store"
    assert "globaltimer" in entry(ptx, "wait_for"), "a wait is bounded by the GPU's own clock"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_warp_pays_one_fence_and_one_atomic_for_all_its_commands(architecture: str) -> None:
    ptx = to_ptx(HERE / "device_kernel.cu", architecture)
    shared, owned = entry(ptx, "push_shared"), entry(ptx, "push_owned")
    # One in each: before the slots. The shared ring has another, where it has waited for room.
    assert (count(r"fence\.acq_rel\.sys", shared), count(r"fence\.acq_rel\.sys", owned)) == (2, 1)
    assert (count(r"\batom\.", shared), count(r"\batom\.", owned)) == (1, 0)
    assert count(r"st\.relaxed\.sys(\.global)?\.v2\.[ub]64", shared) == 1
    assert count(r"st\.relaxed\.sys(\.global)?\.v2\.[ub]64", owned) == 1


def hip_targets() -> list[str]:
    """gfx942 always; gfx950 where this compiler knows it (LLVM 20 and later)."""
    known = subprocess.run(
        ["clang-19", "--target=amdgcn", "-print-supported-cpus"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True,
    ).stderr  # fmt: skip
    assert "gfx942" in known
    return ["gfx942", *(["gfx950"] if "gfx950" in known else [])]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_makes_the_low_latency_kernels(architecture: str) -> None:
    ptx = to_ptx(CUDA / "low_latency.cu", architecture)
    own_cast = count(r"cvt\.rn\.satfinite\.e4m3x2", entry(ptx, "dispatch_fp8")) > 0
    assert own_cast == (architecture != "sm_80"), "the GPU's own conversion where it has one"
    for kernel in LOW_LATENCY:
        assert ".maxntid 1024" in entry(ptx, kernel), "a block has to fit on a processor"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", ["routing.cu", "channels.cu"])
def test_nvrtc_makes_the_high_throughput_kernels(source: str, architecture: str) -> None:
    ptx = to_ptx(CUDA / source, architecture)
    for kernel in KERNELS[CUDA / source]:
        assert ".maxntid 1024" in entry(ptx, kernel), "a block has to fit on a processor"


def test_nvrtc_makes_the_kernels_of_ranks_that_reach_each_other_without_what_others_need() -> None:
    options = ("-arch=sm_90", f"-I{INCLUDE}", "-std=c++20")
    code = [
        Nvrtc().compile(CUDA / "channels.cu", *options, f"-DEPF_CHANNELS_PROXIED={proxied}")[0]
        for proxied in (0, 1)
    ]
    slots = [count(r"st\.relaxed\.sys(\.global)?\.v2\.[ub]64", ptx) for ptx in code]
    assert slots[0] == 0 < slots[1]


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.name)
def test_hip_makes_a_kernel_of_every_device_path(source: Path, tmp_path: Path) -> None:
    path = str(source)
    base = ["clang-19", "-x", "hip", "-nogpuinc", "-nogpulib", "-std=c++20", *WARNINGS,
            f"-I{INCLUDE}"]  # fmt: skip
    for target in hip_targets():
        out = tmp_path / f"{target}.s"
        run(*base, f"--offload-arch={target}", "--cuda-device-only", "-O2", "-S", path,
            "-o", str(out))  # fmt: skip
        text = out.read_text()
        assert all(f"{kernel}:" in text for kernel in KERNELS[source])
        if source.name not in WITHIN_ONE_GPU:
            assert "buffer_wbl2" in text, "the release fence reaches system scope"
        run(*base, f"--offload-arch={target}", "--cuda-host-only", "-fsyntax-only", path)


def test_only_the_platform_headers_know_the_machine() -> None:
    builtin = re.compile(r"\basm\b|__hip_|__builtin_amdgcn|\b(ld|st)\.(relaxed|acquire|release)\.")
    root = INCLUDE.parents[1]
    sources = [p for p in root.rglob("*") if p.suffix in {".h", ".cuh", ".cc", ".cu"}]
    assert len(sources) > len(HEADERS)
    found = {p.name for p in sources if builtin.search(p.read_text())}
    assert found == {
        "platform.h",
        "platform_block.cuh",
        "platform_gpu.cuh",
        "platform_number.cuh",
    }
