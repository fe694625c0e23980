"""The compiled places in the memory that ranks exchange in, and their Python mirror, agree."""

import dataclasses
import os
import random
import subprocess
from pathlib import Path

import pytest
from epfabric.cuda.channels import ChannelShape
from epfabric.cuda.window import Shape, transit_of, window_of

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "kernels/epfabric/include"
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))


@pytest.fixture(scope="module")
def shapes() -> list[Shape]:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    made = [Shape(1, 1, 1, 128, 1), Shape(1024, 1024, 128, 7168, 16)]
    while len(made) < 300:
        world = dice.randint(1, 64)
        experts = world * dice.randint(1, 1024 // world)
        hidden = 128 * dice.randint(1, 64)
        made.append(Shape(world, experts, dice.randint(1, 4096), hidden, dice.randint(1, 16)))
    return made


def test_offsets_and_sizes_are_those_that_python_says(shapes: list[Shape], tmp_path: Path) -> None:
    program = str(tmp_path / "windows")
    subprocess.run(
        ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}",
         str(HERE / "windows.cc"), "-o", program],
        check=True, timeout=120,
    )  # fmt: skip
    asked = "".join(" ".join(map(str, dataclasses.astuple(shape))) + "\n" for shape in shapes)
    done = subprocess.run(
        [program], input=asked, capture_output=True, text=True, timeout=60, check=True
    )
    for shape, line in zip(shapes, done.stdout.splitlines(), strict=True):
        wanted = (*dataclasses.astuple(window_of(shape)), *dataclasses.astuple(transit_of(shape)))
        bulk = ChannelShape(
            shape.world, shape.experts % 64 + 1, shape.tokens, shape.topk, shape.hidden // 128,
            shape.hidden,
        )  # fmt: skip
        wanted += (bulk.slot_bytes, bulk.bytes, bulk.region_bytes)
        assert bulk.slot_bytes % 16 == (bulk.region_bytes - 2 * bulk.rings_bytes) % 32 == 0
        assert tuple(map(int, line.split())) == wanted, shape


def test_all_that_a_command_moves_begins_and_ends_on_its_units(shapes: list[Shape]) -> None:
    for shape in shapes:
        assert all(value % 16 == 0 for value in dataclasses.astuple(transit_of(shape))), shape
        assert shape.message_bytes(fp8=False) % 16 == shape.message_bytes(fp8=True) % 16 == 0
