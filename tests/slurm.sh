#!/usr/bin/env bash
# The smoke grid on a real Slurm with one node: `make test-slurm` (root, Debian: slurm-wlm munge).
# Trains, measures and builds in a fresh clone; one job is cancelled on the way and must be done
# again; a second call must find nothing to do. No systemd, cgroups or accounting; everything lies
# in a temporary folder but /etc/slurm, where srun inside a job looks for its settings. A green run
# leaves its record in book/_assets/slurm.txt.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=$(mktemp -d) && chmod 711 "$dir"
mkdir -p "$dir"/{munge,state,spool,log} && chmod 711 "$dir/munge"
daemons=()

stop() {
    scancel --user=root 2>/dev/null || true
    for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf /etc/slurm/slurm.conf "$dir"
}
trap stop EXIT

[ ! -e /etc/slurm/slurm.conf ] || { echo "/etc/slurm/slurm.conf exists: not touching a real Slurm" >&2; exit 1; }
host=$(hostname -s) memory=$(($(awk '/MemTotal/{print $2}' /proc/meminfo) / 1024 - 512))
mkdir -p /etc/slurm
cat > /etc/slurm/slurm.conf <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
MinJobAge=3600
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc --all) RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF

head -c 1024 /dev/urandom > "$dir/munge/key" && chmod 600 "$dir/munge/key"
munged --foreground --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
    --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" \
    > "$dir/log/munged" 2>&1 & daemons+=($!)
for _ in $(seq 50); do munge -S "$dir/munge/socket" -n > /dev/null 2>&1 && break; sleep 0.2; done
slurmctld -D -i > "$dir/log/slurmctld" 2>&1 & daemons+=($!)
slurmd -D -N "$host" > "$dir/log/slurmd" 2>&1 & daemons+=($!)
for _ in $(seq 100); do sinfo -h -o %T 2>/dev/null | grep -q idle && break; sleep 0.2; done
sinfo -N -l

git clone -q "$root" "$dir/clone"
cd "$dir/clone"
export OMP_NUM_THREADS=1 PYTHONPATH=$PWD
flow() {
    snakemake --config preset=smoke --workflow-profile profiles/slurm --latency-wait 5 --jobs 2 \
        --slurm-status-command squeue --slurm-init-seconds-before-status-checks 2 "$@" 2>&1
}
cancel_one() {  # the first training job that runs
    for _ in $(seq 600); do
        job=$(squeue -h -t RUNNING -o %i | head -n 1)
        [ -n "$job" ] && sleep 2 && scancel "$job" && echo "cancelled job $job" && return
        sleep 0.2
    done
}
cancel_one > "$dir/log/cancelled" & canceller=$!
flow | tee "$dir/log/flow" | grep -E "^Finished|steps|rror|retr|cancel" || true
wait "$canceller"
grep -q "steps (100%) done" "$dir/log/flow"
echo "tried again: $(grep -c "Trying to restart job" "$dir/log/flow")"
grep -q "Trying to restart job" "$dir/log/flow"
[ "$(ls weights/smoke/*.safetensors | wc -l)" -ge 6 ]
test -f book/_build/html/index.html
for log in runs/logs/smoke/*-seed0-*.log; do  # nothing trained twice
    [ "$(grep -c "epoch 2/2" "$log")" -le 1 ] || { echo "trained twice: $log" >&2; exit 1; }
done
flow -n | grep "Nothing to be done" > "$dir/log/again"
{
    echo "$(date -u +%F), $(slurmctld -V), snakemake $(snakemake --version), $(nproc --all) CPUs,"
    echo "code $(git rev-parse --short=12 HEAD), snakemake --config preset=smoke --workflow-profile profiles/slurm"
    sed -n '/^Job stats/,/^total/p' "$dir/log/flow"
    cat "$dir/log/cancelled"
    grep -m 1 "Trying to restart job" "$dir/log/flow"
    grep -a "steps (100%) done" "$dir/log/flow"
    echo "the same command again:"
    cat "$dir/log/again"
} | tee "$root/book/_assets/slurm.txt"
