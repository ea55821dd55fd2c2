#!/usr/bin/env bash
# Create an environment with the CPU build of the torch version in constraints.txt; it has a tenth of the
# size of the other build. Only torch itself comes from torch's own index (--no-deps), so that other
# packages there cannot replace packages of PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m venv "$1"
"$1/bin/pip" install --no-deps --index-url https://download.pytorch.org/whl/cpu \
  "$(grep '^torch==' constraints.txt)"
