#!/usr/bin/env bash
# Brings a Debian machine to where `make` targets run: packages, uv, the Python environment.
# Called by the Makefile before every target; quick when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/../.."

UV_VERSION=0.13.9
CACHE=${EPFABRIC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/epfabric}

say() { echo "[setup] $*" >&2; }
fail() { say "$*"; exit 1; }

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "Python 3.11 or newer is needed as python3"

missing=()
while read -r package; do
  [ -z "$package" ] || dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done < tests/harness/packages.txt
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || fail "these Debian packages are missing and only root can install them: ${missing[*]}"
  say "step 1 of 3: installing ${#missing[@]} Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1 ||
    { tail -n 20 "$log" >&2; fail "apt-get failed: see above"; }
fi

uv="$CACHE/uv-$UV_VERSION/bin/uv"
if [ ! -x "$uv" ]; then
  say "step 2 of 3: installing uv $UV_VERSION"
  mkdir -p "$CACHE"
  unfinished=$(mktemp -d "$CACHE/.uv-XXXXXX")
  python3 -m venv "$unfinished" || fail "python3 has no venv module: install python3-venv"
  "$unfinished/bin/pip" install --quiet --disable-pip-version-check "uv==$UV_VERSION" ||
    { rm -rf "$unfinished"; fail "pip could not install uv"; }
  mv -T "$unfinished" "$CACHE/uv-$UV_VERSION" 2>/dev/null || rm -rf "$unfinished" # another start was first
fi

exec 9> "$CACHE/sync.lock"
flock -w 1800 9 || fail "another setup holds $CACHE/sync.lock for over 30 minutes"
options=()
if [ ! -x .venv/bin/python ]; then
  say "step 3 of 3: Python packages and the native code (about 2 minutes the first time)"
  options=(--compile-bytecode) # for accounts that cannot write it here
fi
UV_PYTHON_DOWNLOADS=never "$uv" sync --frozen --all-packages --quiet "${options[@]}" ||
  fail "the Python environment could not be made: see above"
