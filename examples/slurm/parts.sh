# shellcheck shell=bash
# The parts of a Slurm job: each is a step on its node with a log of its own, and the job waits for
# their health, never for a time. A script that sources this sets LOGS and HERE, the folder with
# `slurm/`, and has srun and Python; bash 4.4 or later.
#
# A part is started by `part`, is waited for by `ready`, and may end the job (`watch`). However the
# script ends, by its own end, by an error, by scancel or by Ctrl-C, `end_parts` ends all of them.

declare -A PART_PID=() PART_NODE=() ADDRESS=()
START_LIMIT_S=${START_LIMIT_S:-1800}  # for one part to be ready; large models load for minutes
END_GRACE_S=${END_GRACE_S:-15}        # for a part to end by itself; below Slurm's KillWait (30)

# Traps run with whatever the interrupted command was redirected to.
exec 3>&1
say() { printf '%(%H:%M:%S)T %s\n' -1 "$*" | tee -a "$LOGS/job.log" >&3; }

# fail TEXT…: say why the job ends, and end it.
fail() {
    say "$@"
    exit 1
}

# part NAME NODE COMMAND…: start it there; what it prints goes to LOGS/NAME.log.
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

# ready NAME COMMAND…: wait until the command succeeds. The job ends where the part ends before.
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
        sleep 0.5 # between two questions
    done
    say "$name is ready"
}

# answers URL: whether it does, with 200.
answers() { curl --silent --fail --max-time 3 --noproxy '*' --output /dev/null "$1"; }

# on NODE COMMAND…: run it there, to its end.
on() { srun --nodes=1 --ntasks=1 --nodelist="$1" --overlap --cpu-bind=none "${@:2}" 3>&-; }

# ended NAME STATUS: say which part has ended, and what it said last.
ended() {
    say "$1 on ${PART_NODE[$1]} has ended with status $2; the end of $LOGS/$1.log:"
    tail -n 60 "$LOGS/$1.log" | tee -a "$LOGS/job.log" >&3
}

# watch: wait until a part ends; ENDED is its name, STATUS its status, and it is a part no more.
watch() {
    local name
    while true; do
        for name in "${!PART_PID[@]}"; do
            runs "$name" && continue
            # shellcheck disable=SC2034 # the script looks at both
            ENDED=$name STATUS=0
            # shellcheck disable=SC2034
            wait "${PART_PID[$name]}" || STATUS=$?
            unset "PART_PID[$name]"
            return
        done
        sleep 1 # `wait -n` would miss one that ended just now
    done
}

# end_parts: tell all parts to end, and wait until they have. on_node.py sees to what is left.
end_parts() {
    local status=$? name until=$((SECONDS + END_GRACE_S + 5))
    trap '' TERM INT HUP EXIT
    for name in "${!PART_PID[@]}"; do
        kill -TERM "${PART_PID[$name]}" 2>/dev/null
    done
    for name in "${!PART_PID[@]}"; do
        while runs "$name" && ((SECONDS < until)); do sleep 0.2; done
        if runs "$name"; then # its node is gone: srun waits for it
            say "$name on ${PART_NODE[$name]} does not end; Slurm ends it with the job"
            kill -KILL "${PART_PID[$name]}" 2>/dev/null
        fi
        wait "${PART_PID[$name]}" 2>/dev/null
    done
    say "all parts have ended"
    exit "$status"
}

# stopped SIGNAL NUMBER: as the shell says it of a script that a signal has ended.
stopped() {
    say "the job was told to end (SIG$1)"
    exit $((128 + $2))
}

# find_addresses INTERFACE: fill ADDRESS by the names of the job's nodes. Without an interface it is
# the first address of each.
find_addresses() {
    local node address
    # shellcheck disable=SC2016 # each node expands it
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
