"""`make cluster NODES=2`: a control plane with real nodes for hands-on use, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from harness.kubectl import PROGRAM
from harness.node.site import Site
from harness.process import HarnessError, Processes, private_mounts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.node", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="1 to 9, default 2")
    parser.add_argument(
        "--image", type=Path, action="append", default=[], help="OCI archive to import on each node"
    )
    options = parser.parse_args()
    count = options.nodes
    if not 1 <= count <= 9:
        parser.error(f"--nodes {count} is not 1 to 9")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        private_mounts()
        with Processes("epfabric-node-") as processes:
            tempfile.tempdir = str(processes.folder)  # libraries' files, too, are removed then
            print(f"starting a control plane and {count} nodes", flush=True)
            site = Site(processes, count)
            site.start(options.image)
            print(f"kubeconfig  {site.cluster.kubeconfig}")
            print(f"logs        {processes.folder / 'logs'}")
            for node in site.nodes:
                print(f"{node.name:11} {node.address}; its shell: {' '.join(node.enter())} bash")
            print(f"try         {PROGRAM} --kubeconfig={site.cluster.kubeconfig} get nodes -o wide")
            print("Ctrl-C ends it", flush=True)
            signal.pause()
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
