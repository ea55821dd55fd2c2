# shellcheck shell=bash
# The parts of a Slurm job. Each part is a step on its node with its own log, and the job waits until
# parts are healthy, not for a fixed time. A script that sources this file sets LOGS, and HERE (the
# folder that contains `slurm/`). It needs srun, Python, and bash 4.4 or later.
#
# `part` starts a part, `ready` waits for it, and `watch` waits until one ends. `end_parts` ends all
# parts when the script ends: normally, by an error, by scancel or by Ctrl-C.

declare -A PART_PID=() PART_NODE=() ADDRESS=()
START_LIMIT_S=${START_LIMIT_S:-1800}  # limit for a part to be ready; large models load for minutes
END_GRACE_S=${END_GRACE_S:-15}        # before a part is killed; below Slurm's KillWait (30)

# Traps run with the redirections of the interrupted command, so keep a copy of stdout.
exec 3>&1
say() { printf '%(%H:%M:%S)T %s\n' -1 "$*" | tee -a "$LOGS/job.log" >&3; }

# fail TEXT…: print why the job ends, and end it.
fail() {
    say "$@"
    exit 1
}

# part NAME NODE COMMAND…: start a command on a node; its output goes to LOGS/NAME.log.
part() {
    local name=$1 node=$2
    shift 2
    srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap --cpu-bind=none \
        --output="$LOGS/$name.log" --unbuffered \
        python3 "$HERE/slurm/on_node.py" --grace-s "$END_GRACE_S" "$@" 3>&- &
    PART_PID[$name]=$! PART_NODE[$name]=$node
    say "$name starts on $node (${ADDRESS[$node]:-no address})"
}

runs() { [[ -n ${PART_PID[$1]:-} ]] && kill -0 "${PART_PID[$1]}" 2>/dev/null; }

# ready NAME COMMAND…: wait until the command succeeds. If the part ends first, the job ends.
ready() {
    local name=$1 began=$SECONDS
    shift
    until "$@" >/dev/null 2>&1; do
        if ! runs "$name"; then
            wait "${PART_PID[$name]}"
            ended "$name" $?
            exit 1
        fi
        ((SECONDS - began < START_LIMIT_S)) ||
            fail "$name on ${PART_NODE[$name]} is not ready after START_LIMIT_S=$START_LIMIT_S" \
                "seconds: $* fails; its log is $LOGS/$name.log"
        sleep 0.5
    done
    say "$name is ready"
}

# answers URL: succeed if the URL answers with status 200.
answers() { curl --silent --fail --max-time 3 --noproxy '*' --output /dev/null "$1"; }

# on NODE COMMAND…: run a command on a node, and wait for it.
on() { srun --nodes=1 --ntasks=1 --nodelist="$1" --overlap --cpu-bind=none "${@:2}" 3>&-; }

# ended NAME STATUS: print which part has ended, and its last output.
ended() {
    say "$1 on ${PART_NODE[$1]} has ended with status $2; the end of $LOGS/$1.log:"
    tail -n 60 "$LOGS/$1.log" | tee -a "$LOGS/job.log" >&3
}

# watch: wait until a part ends. Sets ENDED to its name and STATUS to its status, and forgets it.
watch() {
    local name
    while true; do
        for name in "${!PART_PID[@]}"; do
            runs "$name" && continue
            # shellcheck disable=SC2034 # used by the script
            ENDED=$name STATUS=0
            # shellcheck disable=SC2034
            wait "${PART_PID[$name]}" || STATUS=$?
            unset "PART_PID[$name]"
            return
        done
        sleep 1 # `wait -n` would miss a part that has just ended
    done
}

# end_parts: tell all parts to end, and wait for them. on_node.py kills remaining processes.
end_parts() {
    local status=$? name until=$((SECONDS + END_GRACE_S + 5))
    trap '' TERM INT HUP EXIT
    for name in "${!PART_PID[@]}"; do
        kill -TERM "${PART_PID[$name]}" 2>/dev/null
    done
    for name in "${!PART_PID[@]}"; do
        while runs "$name" && ((SECONDS < until)); do sleep 0.2; done
        if runs "$name"; then # srun still waits for a node that is gone
            say "$name on ${PART_NODE[$name]} does not end; Slurm ends it with the job"
            kill -KILL "${PART_PID[$name]}" 2>/dev/null
        fi
        wait "${PART_PID[$name]}" 2>/dev/null
    done
    say "all parts have ended"
    exit "$status"
}

# stopped SIGNAL NUMBER: exit with the status of a script that a signal has ended.
stopped() {
    say "the job was told to end (SIG$1)"
    exit $((128 + $2))
}

# find_addresses INTERFACE: set ADDRESS for each node of the job. Without an interface, it is the
# node's first address.
find_addresses() {
    local node address
    # shellcheck disable=SC2016 # expanded on each node
    while read -r node address _; do
        ADDRESS[$node]=$address
    done < <(INTERFACE=$1 srun --ntasks-per-node=1 --nodes="$SLURM_JOB_NUM_NODES" --overlap bash -c '
        if [[ $INTERFACE ]]; then
            own=$(ip -4 -o addr show dev "$INTERFACE" scope global | awk "{sub(\"/.*\", \"\", \$4); print \$4; exit}")
        else
            own=$(hostname -I)
        fi
        echo "$SLURMD_NODENAME $own"')
}

trap 'stopped TERM 15' TERM
trap 'stopped INT 2' INT
trap 'stopped HUP 1' HUP
trap end_parts EXIT
