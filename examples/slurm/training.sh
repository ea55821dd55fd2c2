# shellcheck shell=bash
# The parts of every training job: vLLM on some nodes, accelerate on others. A script sources this file
# after parts.sh, can set the variables below before that, and calls find_nodes first.

MODEL=${MODEL:?which model to train: its name or folder}
GPUS=${GPUS:-${SLURM_GPUS_ON_NODE:-8}}  # per node: training processes, or GPUs of vLLM
TENSOR_PARALLEL=${TENSOR_PARALLEL:-1}    # GPUs per vLLM engine
# Or --config_file fsdp.yaml, …; set bf16 in the YAML file, which accelerate would otherwise override.
ACCELERATE_FLAGS=${ACCELERATE_FLAGS:---multi_gpu --mixed_precision no --dynamo_backend no}
VLLM_FLAGS=${VLLM_FLAGS:-}
INTERFACE=${INTERFACE:-}                 # network interface between the nodes, such as ib0
VLLM_PORT=${VLLM_PORT:-8000} MAIN_PORT=${MAIN_PORT:-29500}

# find_nodes KIND…: assign the nodes of the job in order to one array per kind, with KIND_NODES nodes
# each; `nodes` has all. Sets ADDRESS of each node.
find_nodes() {
    local kind node number first=0 said=()
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    for kind in "$@"; do
        number=${kind^^}_NODES
        local -n of_kind=$kind
        # shellcheck disable=SC2034 # used by the script
        of_kind=("${nodes[@]:first:${!number}}")
        first=$((first + ${!number}))
        said+=("$number=${!number}")
    done
    ((${#nodes[@]} == first)) ||
        fail "the job has ${#nodes[@]} nodes, but $(join_words "${said[@]}") need $first:" \
            "sbatch --nodes=$first"
    ((GPUS % TENSOR_PARALLEL == 0)) ||
        fail "GPUS=$GPUS is not a multiple of TENSOR_PARALLEL=$TENSOR_PARALLEL"
    find_addresses "$INTERFACE"
    for node in "${nodes[@]}"; do
        [[ ${ADDRESS[$node]:-} ]] || fail "$node has no address${INTERFACE:+ on $INTERFACE}"
    done
    if [[ $INTERFACE ]]; then
        export NCCL_SOCKET_IFNAME=$INTERFACE GLOO_SOCKET_IFNAME=$INTERFACE
    fi
}

# join_words A B C: A, B and C.
join_words() {
    local last=${*: -1} others=("${@:1:$#-1}")
    (IFS=, && echo "${others[*]}") | sed "s/,/, /g; s/$/ and $last/"
}

# start_vllm NODE…: start one vLLM server. Further nodes add engines to it (data parallelism); only the
# first node takes requests. Sets VLLM_URL to its address.
start_vllm() {
    local k own more first=${ADDRESS[$1]} engines=$((GPUS / TENSOR_PARALLEL)) on=("$@")
    for k in "${!on[@]}"; do
        own=${ADDRESS[${on[k]}]}
        more=()
        ((k == 0)) || more=(--headless --data-parallel-start-rank $((k * engines)))
        # shellcheck disable=SC2086 # flags are words
        part "vllm-$k" "${on[k]}" env VLLM_SERVER_DEV_MODE=1 VLLM_HOST_IP="$own" \
            vllm serve "$MODEL" --host "$own" --port "$VLLM_PORT" \
            --logprobs-mode processed_logprobs --max-logprobs -1 \
            --weight-transfer-config '{"backend": "nccl"}' --tensor-parallel-size "$TENSOR_PARALLEL" \
            --data-parallel-size $((engines * $#)) --data-parallel-size-local "$engines" \
            --data-parallel-address "$first" --data-parallel-rpc-port 13345 \
            "${more[@]}" $VLLM_FLAGS
    done
    VLLM_URL=http://$first:$VLLM_PORT
}

# start_training NODE… -- SCRIPT ARGUMENTS…: run accelerate on the nodes, with one process per GPU. @OWN@
# in an argument is replaced by the address of the node.
start_training() {
    local k own on=()
    while [[ $1 != -- ]]; do on+=("$1") && shift; done
    shift
    for k in "${!on[@]}"; do
        own=${ADDRESS[${on[k]}]}
        # shellcheck disable=SC2086 # flags are words
        part "train-$k" "${on[k]}" env VLLM_HOST_IP="$own" \
            accelerate launch --num_machines ${#on[@]} --num_processes $((${#on[@]} * GPUS)) \
            --machine_rank "$k" --main_process_ip "${ADDRESS[${on[0]}]}" \
            --main_process_port "$MAIN_PORT" $ACCELERATE_FLAGS "${@//@OWN@/$own}"
    done
}
