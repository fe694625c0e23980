#!/bin/sh
# Fills /opt/epfabric inside an image's build: `build.sh "FOLDERS" OPTIONS…`, called by the Dockerfile.
# FOLDERS are the parts that are built from source; OPTIONS choose the locked packages of others (uv sync).
set -eu
if [ -f /mnt/env ]; then . /mnt/env; fi
folders=$1
shift
/opt/tools/bin/uv sync --frozen --no-install-workspace "$@"
if [ -n "$folders" ]; then
  # One environment at a fixed path builds all wheels: an isolated one would leave its random path in them.
  /opt/tools/bin/pip install $(python3 images/prepare.py build-requirements $folders)
  for folder in $folders; do
    PATH=/opt/tools/bin:$PATH pip wheel --no-build-isolation --no-deps --no-index -w /wheels "./$folder"
  done
  /opt/tools/bin/uv pip install --python /opt/epfabric --no-cache --offline --no-deps /wheels/*.whl
else
  python3 images/prepare.py csi agent /opt/epfabric
fi
python3 images/prepare.py finish /opt/epfabric
