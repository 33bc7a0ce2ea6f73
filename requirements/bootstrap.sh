#!/usr/bin/env bash
# Find what an environment needs from the system: git and a Python that can make environments.
#   bootstrap.sh [TARGET]     of make: env (default), tensorflow, keras, mxnet
# What is missing is installed when this user may do so, else the error names it.
# Prints the Python to use; messages go to stderr.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/system.sh"

target=${1:-env}
versions=$python_versions
whatfor=""
packages="Debian 12 has python3.11-venv, Ubuntu 24.04 python3.12-venv, Debian 13 python3.13-venv"
if [ "$target" = tensorflow ] || [ "$target" = mxnet ]; then
    versions=3.11 # later ones have no wheels of TensorFlow 2.15, nor of the numpy that MXNet needs
    packages="Debian 12 has python3.11-venv"
    whatfor=" for make $target"
elif [ "$target" = env ] && [ "${DALI:-}" = cuda110 ]; then
    versions="3.11 3.12" # NVIDIA's last wheel of that name refuses later ones
    whatfor=" for DALI=cuda110"
fi
allowed=$versions
[ "${versions% *}" = "$versions" ] || allowed="${versions%% *} to ${versions##* }"

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
fits() { case " $versions " in *" $(version_of "$1") "*) ;; *) return 1 ;; esac; }
makes_environments() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Set `python` to the first candidate that is complete, else to the first of a right version.
find_python() {
    local candidate
    python=""
    for candidate in ${PYTHON:-${versions//3./python3.} python3 python /usr/bin/python3}; do
        fits "$candidate" || continue
        if makes_environments "$candidate"; then
            python=$candidate
            return
        fi
        python=${python:-$candidate}
    done
}

found_pythons() {
    local candidate
    for candidate in ${PYTHON:-python3 python}; do
        if command -v "$candidate" >/dev/null; then
            echo "$candidate is $("$candidate" --version 2>&1 | tail -n 1)"
            return
        fi
    done
    echo "there is no ${PYTHON:-python3}"
}

command -v git >/dev/null || apt_install git ||
    fail "git is missing: records name the commit that was measured" "install the package git"

find_python
if [ -z "$python" ] && [ -z "${PYTHON:-}" ]; then
    for version in $versions; do
        if apt_install "python$version-venv"; then break; fi
    done
    find_python
fi
[ -n "$python" ] || fail "Python $allowed is needed$whatfor, and here $(found_pythons)" \
    "install one: a package ($packages)," "a module of the cluster, or" \
    "conda env create -f environment.yml && conda activate ddl" \
    "or name one: make $target PYTHON=/path/to/python${versions##* }"

if ! makes_environments "$python"; then
    package="python$(version_of "$python")-venv"
    apt_install "$package" || true
    makes_environments "$python" || fail "$python cannot make environments: no venv or ensurepip" \
        "install the package $package, or name another Python: make $target PYTHON=/path/to/python3.11"
fi

# Compiling Horovod needs these; without them all else works, and its own build says what is missing.
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
[ -f "$headers/Python.h" ] || apt_install "python$(version_of "$python")-dev" || true
command -v "${CXX:-g++}" >/dev/null || apt_install g++ || true
"$python" -c 'import sys; print(sys.executable)'
