#!/usr/bin/env bash
# up.sh DIR NODES USER GROUP: a SLURM of emulated nodes of one core, loopback only, without systemd.
# ddl_tools/emulation/local_slurm.py executes it as the first process of namespaces of its own, so
# nothing here touches the machine, and the end of this process is the end of all that it started.
# USER and GROUP are the caller's numbers: without root, SLURM has to run as the only user it knows.
# Prints "ready" once all nodes are idle, lives until its standard input is closed, then removes DIR.
set -euo pipefail
dir=$1 nodes=$2 user=$3 group=$4
export PATH=$PATH:/usr/sbin:/sbin
host=slurm-local
# SLURM resolves names only where there is an address besides loopback's own.
address=10.99.0.2
port=17000 # this network has no other user

ip link set lo up
ip address add $address/32 dev lo
hostname $host
{
    echo "127.0.0.1 localhost"
    echo "$address $host $(seq -s ' ' -f 'node%g' "$nodes")"
} >"$dir/hosts"
mount --bind "$dir/hosts" /etc/hosts
# The programs there enter these namespaces; in here the real ones are to be found.
mount -t tmpfs none "$dir/bin"
mkdir -p "$dir"/{state,spool,log}
(umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")

cat >"$dir/slurm.conf" <<CONF
ClusterName=local
SlurmctldHost=$host($address)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$dir/munge.sock,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
KillWait=20
MinJobAge=300
SchedulerParameters=sched_interval=2,sched_min_interval=0,batch_sched_delay=0,bf_interval=2
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/jobcomp.txt
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
CONF
for i in $(seq "$nodes"); do
    mkdir -p "$dir/spool/node$i"
    echo "NodeName=node$i NodeHostname=$host NodeAddr=$address Port=$((port + i)) CPUs=1" \
        "RealMemory=4000 State=UNKNOWN"
done >>"$dir/slurm.conf"
echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$dir/slurm.conf"
export SLURM_CONF=$dir/slurm.conf

as=()
[ "$user" = 0 ] || as=(unshare --user --map-user="$user" --map-group="$group")
# --force: inside a user namespace the owner of / is nobody.
"${as[@]}" munged --force --num-threads=4 --key-file="$dir/munge.key" --socket="$dir/munge.sock" \
    --pid-file="$dir/munged.pid" --log-file="$dir/log/munged.log" --seed-file="$dir/munged.seed"
"${as[@]}" slurmctld
for i in $(seq "$nodes"); do "${as[@]}" slurmd -N "node$i"; done

end=$((SECONDS + 60))
until [ "$(timeout 5 "${as[@]}" sinfo --noheader --Node --states=idle --format=%N | wc -l)" = "$nodes" ]; do
    if [ $SECONDS -ge $end ]; then
        "${as[@]}" sinfo --Node --long
        tail -qn 5 "$dir"/log/*.log
        exit 1
    fi >&2
    sleep 0.1
done
echo ready
exec >&-
# In braces, so that it is read before it waits: a checkout may change meanwhile.
{
    while read -r _; do :; done
    kill -KILL -1 # all other processes of these namespaces
    umount "$dir/bin" /etc/hosts
    for _ in 1 2 3; do rm -rf "$dir" && break; done # the killed may still be writing
    exit
}
