#!/usr/bin/env bash
# Trains on all hosts of one Slurm job: a Ray head on the first, a node on each other one.
#
#   sbatch examples/cluster/slurm.sh cartpole --mode async --actors 30
#
# Home and the folder it is submitted from must be on a disk that all hosts share, and the
# environment that is active must have `rookery[ray]`.
#SBATCH --job-name=rookery
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=02:00:00
#SBATCH --signal=B:TERM@120
set -euo pipefail

STORE_BYTES=$((2 << 30)) # of each host's object store; df -h /dev/shm must have more
# Jobs may share a host: each has its own ports.
PORT=$((20000 + SLURM_JOB_ID % 10000))
WORKER_PORT=$((40000 + SLURM_JOB_ID % 100 * 200))

# The token of this job: readable by its user only, and removed at the end.
umask 077
secrets=$(mktemp --directory "$HOME/.rookery-job-$SLURM_JOB_ID-XXXXXX")
python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$secrets/token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$secrets/token" RAY_USAGE_STATS_ENABLED=0
export OMP_NUM_THREADS=1

leave() {
    trap - EXIT
    jobs -p | xargs --no-run-if-empty kill 2>/dev/null || true
    wait || true
    rm -r "$secrets"
}
trap leave EXIT

read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
read -r ip _ < <(getent ahostsv4 "$head")
address=$ip:$PORT
node=(
    --num-cpus="$SLURM_CPUS_PER_TASK"
    --object-store-memory="$STORE_BYTES"
    --min-worker-port="$WORKER_PORT" --max-worker-port=$((WORKER_PORT + 199))
    --temp-dir="/tmp/ray-$SLURM_JOB_ID"
    --disable-usage-stats --block
)

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$ip" --port="$PORT" \
    --include-dashboard=false "${node[@]}" &
for ((second = 0; second < 120; second++)); do
    ray status --address="$address" >/dev/null 2>&1 && break
    sleep 1
done
ray status --address="$address" >/dev/null || { echo "no Ray head at $address" >&2; exit 3; }

# Hosts do not wait for each other: they may join while the run trains.
if ((SLURM_JOB_NUM_NODES > 1)); then
    srun --overlap --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks-per-node=1 --exclude="$head" \
        ray start --address="$address" "${node[@]}" &
fi

# Slurm tells the script two minutes before time is up. The run saves and ends;
# submitted again with `--resume RUN`, it goes on.
rookery train "$@" --engine ray --address "$address" &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
wait "$run" || code=$?
if kill -0 "$run" 2>/dev/null; then # it was the signal that ended the wait, not the run
    code=0
    wait "$run" || code=$?
fi
exit "$code"
