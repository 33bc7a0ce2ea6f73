#!/usr/bin/env bash
# What `make cluster-demo` does beside a private SLURM: submit what is left of a study, show its runs
# until all have ended, draw the figures. Called again it goes on with what is left.
set -euo pipefail
study=${1:-cluster_demo}
sinfo
ddl study submit "$study" --site localtest --retry-failed
status=0
ddl study status "$study" --watch || status=$?
ddl figures --results "${DDL_RESULTS:-results}"
[ "$status" != 0 ] || echo "next: describe your cluster (docs/how-to/describe-a-cluster.md), then ddl doctor --site NAME"
exit "$status"
