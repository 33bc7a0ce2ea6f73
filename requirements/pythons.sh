#!/usr/bin/env bash
# Try the supported Pythons that this machine has beside the one of .venv:
#   pythons.sh FOLDER [newest]
# For each, pip resolves all pins (it downloads what the packages say of themselves, not the
# packages), and the tests that need no torch run in a small environment in FOLDER. A machine with
# no other Python has nothing to try, which is no error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. requirements/system.sh

folder=$1 which=${2:-all}
# A framework that is missing is an error in CI; here it is missing on purpose.
unset CI
# Else every process would compile the packages again.
unset PYTHONDONTWRITEBYTECODE
marks="not slow and not multiprocess and not notebook and not slurm and not browser"
marks="$marks and not alone and not extended"

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Prints a Python of version $1: of PATH, else of pyenv, whose versions are not on PATH.
python_of() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if [ "$(version_of "$candidate")" = "$1" ] &&
            "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

# The packages of all sets and of DALI, as `make env` would install them.
resolve() {
    "$1" -m pip install --disable-pip-version-check --no-input --dry-run --ignore-installed \
        -c requirements/constraints.txt -r requirements/analysis.txt -r requirements/train.txt \
        -r requirements/notebooks.txt -r requirements/export.txt -r requirements/test.txt \
        -r requirements/dali_cuda130.txt
}

# The same on 64-bit Arm, e.g. GH200: each pin has a wheel of its own there, but for two that are built.
resolve_for_arm() {
    "$1" -m pip install --disable-pip-version-check --no-input --dry-run --ignore-installed \
        --no-deps --target "$folder/none" --only-binary :all: --no-binary deepspeed,tfrecord \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 \
        --platform manylinux2014_aarch64 -r requirements/constraints.txt \
        -r requirements/dali_cuda130.txt
}

install() {
    local pip=(-m pip install --disable-pip-version-check --no-input --no-compile)
    rm -rf "$2" && "$1" -m venv "$2"
    # Older ones download every package in order to resolve.
    "$2/bin/python" "${pip[@]}" "pip>=24.1"
    "$2/bin/python" "${pip[@]}" -c requirements/constraints.txt -r requirements/analysis.txt \
        -r requirements/notebooks.txt -r requirements/export.txt -r requirements/test.txt
    "$2/bin/python" "${pip[@]}" --no-deps --editable .
}

# Arguments: python, and what to leave out.
run_tests() {
    local python=$1
    shift
    "$python" -m pytest -p tests.without_torch -p no:cacheprovider -p no:randomly -q -rfE -n auto \
        --maxprocesses 4 --dist loadfile -m "$marks" "$@"
}

# Prints what the tests of version $1 leave out: figures, a third of their time, are drawn by the
# Python of .venv and by the newest one.
left_out() {
    [ "$1" = "$newest" ] || echo --ignore tests/analysis/figures
}

# Runs a step into the log; says what it was that failed.
step() {
    local what=$1
    shift
    "$@" >>"$log" 2>&1 && return
    grep -v ^WARNING "$log" | tail -n 30
    echo "Python $version: $what FAILED; all of the output: $log"
    return 1
}

mkdir -p "$folder"
for version in $python_versions; do
    [ -z "$(python_of "$version")" ] || newest=$version
done
tried="" failed=""
for version in $python_versions; do
    [ "$(version_of .venv/bin/python)" != "$version" ] || continue
    [ "$which" = all ] || [ "$version" = "$newest" ] || continue
    python=$(python_of "$version")
    [ -n "$python" ] || continue
    tried="$tried $version"
    log=$folder/$version.log environment=$folder/$version
    : >"$log"
    SECONDS=0
    if step "installing without torch" install "$python" "$environment" && installed=$SECONDS &&
        step "resolving the pins" resolve "$environment/bin/python" && resolved=$SECONDS &&
        step "resolving the pins for aarch64" resolve_for_arm "$environment/bin/python" &&
        step "tests without torch" run_tests "$environment/bin/python" $(left_out "$version"); then
        echo "Python $version ($python): installed without torch in $installed s," \
            "all pins resolved in $((resolved - installed)) s, also for aarch64, tests: $(tail -n 1 "$log")"
    else
        failed="$failed $version"
    fi
    rm -rf "$environment"
done
[ -n "$tried" ] || echo "no other Python of $python_versions on this machine: nothing to try"
[ -z "$failed" ] || fail "failed on Python$failed"
