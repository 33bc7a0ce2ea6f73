# What the other scripts share, to be sourced: errors, and packages of the system.

# The range of requires-python in pyproject.toml, in the order of preference: what was run on each
# says README.md beside this file.
# shellcheck disable=SC2034 # for those that source this
python_versions="3.11 3.12 3.13 3.14"

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
    exit 1
}

# Install Debian packages; fails quietly on other systems, where a password would be asked for, and
# with DDL_NO_APT=1.
apt_install() {
    local sudo=""
    [ "${DDL_NO_APT:-0}" != 1 ] || return 1
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 1
        sudo="sudo -n"
    fi
    if [ -z "${apt_updated:-}" ]; then
        $sudo apt-get update -qq >/dev/null 2>&1 || true # the next line tells whether it mattered
        apt_updated=yes
    fi
    # Which Python a release has is found out by asking for each: no error of apt's for those.
    apt-cache show "$@" >/dev/null 2>&1 || return 1
    echo "installing system packages: $*" >&2
    $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
}
