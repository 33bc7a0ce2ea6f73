#!/bin/bash
#SBATCH --job-name=ddl-horovod-native-resnet50-4x4-r0-8edb12fb
#SBATCH --output='/shared/results/runs/a study/run/logs/slurm-%j.log'
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/ddl
#SBATCH --account=project1
#SBATCH --partition=booster
#SBATCH --time=01:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --gres=gpu:4
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue

# One run, made by `ddl study submit` from slurm/job.sh.j2. The notebook runs here, on the first
# node; the ranks that it starts are one step of this job.
set -e
module purge
module load Stages/2025 GCC OpenMPI Python
export USER="${USER:-$(id -un)}"
export PYTHONPATH="/shared/ddl${PYTHONPATH:+:$PYTHONPATH}"
export DDL_CACHES="${SCRATCH:?}/$USER/ddl-caches"
export XDG_CACHE_HOME="${SCRATCH:?}/$USER/ddl-caches"
export MPLCONFIGDIR="${SCRATCH:?}/$USER/ddl-caches/matplotlib"
export TORCH_HOME="${SCRATCH:?}/$USER/ddl-caches/torch"
export TORCH_EXTENSIONS_DIR="${SCRATCH:?}/$USER/ddl-caches/torch_extensions"
export TRITON_CACHE_DIR="${SCRATCH:?}/$USER/ddl-caches/triton"
export TORCHINDUCTOR_CACHE_DIR="${SCRATCH:?}/$USER/ddl-caches/torchinductor"
export NCCL_SOCKET_IFNAME="ib0"
export GLOO_SOCKET_IFNAME="ib0"
export HOROVOD_GLOO_IFACE="ib0"
export HOROVOD_CONTROLLER="mpi"
export NCCL_IB_TIMEOUT="22"
# Libraries load code from there: whatever is open to other users, a run refuses.
mkdir -p -m 700 "$DDL_CACHES"

# srun does not take over the job's cores per task (since 22.05), nor always its environment.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" SLURM_EXPORT_ENV=ALL
# What the ranks are started with; ddl_tools/launch/commands.py reads it.
export DDL_SRUN='srun --kill-on-bad-exit=1 --distribution=block --cpus-per-task=12 --mpi=pspmix --cpu-bind=none env -u CUDA_VISIBLE_DEVICES'
# The same for one task on each node, which starts the ranks of its node itself.
export DDL_SRUN_NODE='srun --kill-on-bad-exit=1 --distribution=block --cpus-per-task=48 --mpi=none --cpu-bind=none --gpu-bind=none env -u CUDA_VISIBLE_DEVICES'
unset DDL_CONTAINER
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)i"
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
exit "$status"
