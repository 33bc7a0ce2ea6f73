#!/usr/bin/env bash
# Find what a private SLURM on this machine needs: the tests and `make cluster-demo` start one.
# What is missing is installed when this user may do so, else the error names it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/system.sh"

packages="slurmctld slurmd slurm-client munge iproute2 util-linux" # local_slurm.py names them too
export PATH=$PATH:/usr/sbin:/sbin

complete() {
    local program
    for program in slurmctld slurmd sbatch srun munged ip unshare nsenter; do
        command -v $program >/dev/null || return 1
    done
}

# shellcheck disable=SC2086 # one word per package
complete || apt_install $packages || true
complete || fail "a private SLURM needs programs that this machine lacks" \
    "install the Debian packages: $packages"

# Only the tests of containers need it, which skip themselves without.
command -v ch-run >/dev/null || apt_install charliecloud-runtime || true
# The same of module systems, of which a machine has one.
[ -e /usr/share/lmod ] || [ -e /usr/share/modules ] || apt_install lmod || true
