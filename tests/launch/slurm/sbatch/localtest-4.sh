#!/bin/bash
#SBATCH --job-name=ddl-ddp-native-resnet50-4x1-r0-ad273ecf
#SBATCH --output='/shared/results/runs/a study/run/logs/slurm-%j.log'
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/ddl
#SBATCH --time=00:10:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:USR1@60
#SBATCH --requeue

# One run, made by `ddl study submit` from slurm/job.sh.j2. The notebook runs here, on the first
# node; the ranks that it starts are one step of this job.
set -e
export USER="${USER:-$(id -un)}"
export PYTHONPATH="/shared/ddl${PYTHONPATH:+:$PYTHONPATH}"
export DDL_CACHES="${TMPDIR:-/tmp}/ddl-$USER"
export XDG_CACHE_HOME="${TMPDIR:-/tmp}/ddl-$USER"
export MPLCONFIGDIR="${TMPDIR:-/tmp}/ddl-$USER/matplotlib"
export TORCH_HOME="${TMPDIR:-/tmp}/ddl-$USER/torch"
export TORCH_EXTENSIONS_DIR="${TMPDIR:-/tmp}/ddl-$USER/torch_extensions"
export TRITON_CACHE_DIR="${TMPDIR:-/tmp}/ddl-$USER/triton"
export TORCHINDUCTOR_CACHE_DIR="${TMPDIR:-/tmp}/ddl-$USER/torchinductor"
export GLOO_SOCKET_IFNAME="lo"
export HOROVOD_GLOO_IFACE="lo"
# Libraries load code from there: whatever is open to other users, a run refuses.
mkdir -p -m 700 "$DDL_CACHES"

# srun does not take over the job's cores per task (since 22.05), nor always its environment.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" SLURM_EXPORT_ENV=ALL
# What the ranks are started with; ddl_tools/launch/commands.py reads it.
export DDL_SRUN='srun --kill-on-bad-exit=1 --distribution=block --cpus-per-task=1 --mpi=none'
# The same for one task on each node, which starts the ranks of its node itself.
export DDL_SRUN_NODE='srun --kill-on-bad-exit=1 --distribution=block --cpus-per-task=1 --mpi=none --cpu-bind=none'
unset DDL_CONTAINER
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export MASTER_ADDR

# The job imports nothing from the folder in which it was submitted: -P, and no empty item.
PYTHONPATH="$(tr -s : <<<"$PYTHONPATH")"
PYTHONPATH="${PYTHONPATH#:}" PYTHONPATH="${PYTHONPATH%:}"

# Told to stop, the run ends its ranks and says so in its record. At the notice of the time limit it
# is told so by USR1; before it listens, that ends it, which leaves nothing behind.
limit=0
/shared/venv/python -P -m ddl_tools.launch.slurm.job '/shared/results/runs/a study/run' &
run=$!
trap 'kill -TERM "$run" 2>/dev/null' TERM
trap 'limit=1; kill -USR1 "$run" 2>/dev/null' USR1
set +e
while kill -0 "$run" 2>/dev/null; do wait "$run"; done
wait "$run"
status=$?
# It goes on from its last checkpoint, in the same job, unless this start made no headway: it then
# ends with 1.
if [ "$limit" = 1 ] && [ "$status" -gt 128 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 1 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
