#!/usr/bin/env bash
# Make an environment with the CPU build of the torch that constraints.txt pins: a tenth of what the
# other build brings along. From torch's own index comes torch alone (--no-deps): no other name there
# can take the place of a package of PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m venv "$1"
"$1/bin/pip" install --no-deps --index-url https://download.pytorch.org/whl/cpu \
  "$(grep '^torch==' constraints.txt)"
