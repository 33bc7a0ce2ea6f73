srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --kill-on-bad-exit=1 --distribution=block --cpus-per-task=8 --mpi=none sh -c '
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
mkdir -p "$0/$RANK" && exec "$@" >"$0/$RANK/stdout.log" 2>"$0/$RANK/stderr.log"
' '/shared/results/runs/nsys/a run/logs/attempt_0/srun/attempt_0' nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --wait=primary --force-overwrite=true '--output=/shared/results/runs/nsys/a run/logs/attempt_0/nsys/rank.%q{RANK}' /shared/venv/python -m ddl_tools.rank.worker '/shared/results/runs/nsys/a run'
