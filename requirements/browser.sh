#!/usr/bin/env bash
# Find the browser that the tests of JupyterLab drive, and its driver.
# What is missing is installed when this user may do so, else the error names it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/system.sh"

packages="chromium chromium-driver" # tests/test_jupyterlab.py names them too

complete() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }

# shellcheck disable=SC2086 # one word per package
complete || apt_install $packages || true
complete || fail "the tests of JupyterLab need a browser that this machine lacks" \
    "install the Debian packages: $packages"
