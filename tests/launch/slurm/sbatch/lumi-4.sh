#!/bin/bash
#SBATCH --job-name=ddl-ddp-native-resnet50-4x8-r0-bfbbe80d
#SBATCH --output='/shared/results/runs/a study/run/logs/slurm-%j.log'
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/ddl
#SBATCH --account=project1
#SBATCH --partition=standard-g
#SBATCH --time=01:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --gpus-per-node=8
#SBATCH --mem=480G
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue

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
export NCCL_SOCKET_IFNAME="hsn0,hsn1,hsn2,hsn3"
export GLOO_SOCKET_IFNAME="hsn0"
export HOROVOD_GLOO_IFACE="hsn0"
export NCCL_NET_GDR_LEVEL="3"
export MIOPEN_USER_DB_PATH="$DDL_CACHES/miopen"
export MIOPEN_CUSTOM_CACHE_DIR="$DDL_CACHES/miopen"
# Libraries load code from there: whatever is open to other users, a run refuses.
mkdir -p -m 700 "$DDL_CACHES"
module use /appl/local/laifs/modules
module load lumi-aif-singularity-bindings

# srun does not take over the job's cores per task (since 22.05), nor always its environment.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" SLURM_EXPORT_ENV=ALL
# What the ranks are started with; ddl_tools/launch/commands.py reads it.
export DDL_SRUN='srun --kill-on-bad-exit=1 --distribution=block --cpus-per-task=7 --mpi=none --cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000 sh -c '"'"'export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID; exec "$@"'"'"' rank'
# The same for one task on each node, which starts the ranks of its node itself.
export DDL_SRUN_NODE='srun --kill-on-bad-exit=1 --distribution=block --cpus-per-task=56 --mpi=none --cpu-bind=none --gpu-bind=none'
# What they run in. The run's folders are bound as it starts, when all of them are known.
export DDL_CONTAINER='{"runtime":"singularity","image":"/appl/local/laifs/containers/lumi-multitorch-u24r70f21m50t210-20260415_130625/lumi-multitorch-full-u24r70f21m50t210-20260415_130625.sif","binds":[],"args":[],"gpu_option":false,"python":"/opt/venv/bin/python"}'
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
exit "$status"
