"""Conversions to bfloat16 and to 8-bit floats, against rounding by search among all values."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "kernels/epfabric/include"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("numbers") / "numbers"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
    subprocess.run(["g++", *flags, str(HERE / "numbers.cc"), "-o", str(out)], check=True,
                   timeout=120)  # fmt: skip
    return out


@pytest.fixture(scope="module")
def floats() -> np.ndarray:
    """Random bits, values around every 8-bit float and halfway between, the ends."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    codes = fp8_values(np.arange(127, dtype=np.uint8))
    halves = (codes[1:] + codes[:-1]) / 2
    near = np.concatenate([codes, halves]).astype(np.float32)
    edges = [np.nextafter(near, np.float32(way)) for way in (-np.inf, np.inf)]
    random = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    common = (rng.standard_normal(200_000) * 100).astype(np.float32)
    ends = np.array([0.0, np.inf, np.nan, 448, 449, 464, 1e30, 2**-9, 2**-10], np.float32)
    values = np.concatenate([near, *edges, random, common, ends])
    return np.concatenate([values, -values])


@pytest.fixture(scope="module")
def converted(program: Path, floats: np.ndarray) -> np.ndarray:
    done = subprocess.run([program], input=floats.tobytes(), capture_output=True, check=True,
                          timeout=60)  # fmt: skip
    return np.frombuffer(done.stdout, np.uint32).reshape(-1, 3)


def fp8_values(codes: np.ndarray) -> np.ndarray:
    exponent, fraction = (codes >> 3 & 15).astype(int), (codes & 7) / 8
    return np.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent - 7.0))


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The place of the nearest of an ascending table; the even place where two are as near."""
    upper = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    below, above = values - table[upper - 1], table[upper] - values
    takes_upper = (above < below) | ((above == below) & (upper % 2 == 0))
    return np.where(takes_upper, upper, upper - 1)


def test_an_8_bit_float_is_the_nearest_one(floats: np.ndarray, converted: np.ndarray) -> None:
    real = ~np.isnan(floats)
    sizes = np.minimum(np.abs(floats[real].astype(np.float64)), 448)
    wanted = nearest(sizes, fp8_values(np.arange(127, dtype=np.uint8)))
    wanted |= np.where(np.signbit(floats[real]), 0x80, 0)
    assert np.array_equal(converted[real, 1], wanted)
    assert (converted[~real, 1] & 0x7F == 0x7F).all()


def test_a_bfloat16_is_the_nearest_one(floats: np.ndarray, converted: np.ndarray) -> None:
    bits = floats.view(np.uint32).astype(np.uint64)
    real = ~np.isnan(floats)
    low = bits & 0xFFFF
    up = (low > 0x8000) | ((low == 0x8000) & (bits >> 16 & 1 == 1))
    assert np.array_equal(converted[real, 0], ((bits >> 16) + up)[real])
    assert np.isnan((converted[~real, 0] << 16).view(np.float32)).all()


def test_the_power_of_two_is_the_least_that_is_not_below(
    floats: np.ndarray, converted: np.ndarray
) -> None:
    usual = (floats >= 1e-37) & (floats <= 1e37)
    powers = converted[usual, 2].view(np.float32).astype(np.float64)
    values = floats[usual].astype(np.float64)
    assert (powers >= values).all()
    assert (powers / 2 < values).all()
