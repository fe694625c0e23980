"""`make images`: builds EPFabric's images and prints their names, digests, sizes and archives."""

from __future__ import annotations

import argparse
import sys

from harness.build import say
from harness.images import BUILDERS, TARGETS, images
from harness.process import HarnessError


def main() -> int:
    parser = argparse.ArgumentParser(prog="make images", description=__doc__)
    parser.add_argument("target", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--architecture", choices=list(BUILDERS), default="amd64")
    options = parser.parse_args()
    chosen = options.target or list(TARGETS)
    if unknown := set(chosen) - set(TARGETS):
        parser.error(f"no image {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    try:
        built = images(chosen, options.architecture)
    except HarnessError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    for image in built.values():
        size = image.archive.stat().st_size / 1e6
        print(f"{image.reference}@{image.digest}\t{size:.0f} MB\t{image.archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
