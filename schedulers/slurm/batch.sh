# Runs a job: starts the replicas, and decides from what they leave how the job ends.

unset "${!SCONTROL_@}" "${!SINFO_@}" SLURM_TIME_FORMAT SLURM_CLUSTERS # which change what the commands below print

record=$job_dir/slurm-$id
outcome_file=$record/outcome
progress_file=$record/$progress_name
restarts=${SLURM_RESTART_COUNT:-0} # counted by Slurm: a full disk must not let a job start again for ever
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd ,)

keep "$(printf '%(%F %T)T' -1) $nodes" attempts || {
    report "cannot write to $job_dir: the job directory must be on storage that all nodes share, and not full"
    exit 1
}

last=$(cat "$record/state" 2> /dev/null)
if [[ $last == succeeded* ]]; then
    report "the job is done and does not start again"
    exit 0
fi
bound "$restarts" "$last"

# So that `torchx status`, `log` and `list` also find a job that plain sbatch submitted. A job that `torchx delete` has
# ended may begin all the same, before Slurm's signal reaches it: it must not come back to the list.
index=${XDG_STATE_HOME:-$HOME/.local/state}/$index_folder/$SLURM_CLUSTER_NAME
[[ -e $record/$cancelled_file ]] || { mkdir -p "$index" && printf '%s\n' "$job_dir" > "$index/${id%%_*}"; }

prepare
. "$job_dir/$environment_file" || end "failed: cannot read $job_dir/$environment_file" 1

port=$(free_port) || end "failed: processes of ${nodes%%,*} hold all $ports ports from $first_port on" 1
export "$rank0_variable=${nodes%%,*}" "$port_variable=$port" "$outcome_variable=$outcome_file" \
    "$progress_variable=$progress_file"
((saved_step)) && export "$saved_step_variable=$saved_step"
rm -rf "$outcome_file" "$progress_file" "$record/layout" "$record/ended"
mkdir "$record/ended"
note "running on $nodes"

# USR1 comes before the time limit, before some preemptions, or by `scancel --signal=USR1 --batch`; srun passes it to
# every rank. TERM comes when Slurm ends the job; the ranks get theirs from Slurm.
ended_by_slurm=
trap 'report "stop requested"; warned=yes; ${step:+kill -USR1 "$step"}' USR1
[[ $warned ]] && again "stop requested before anything started"
trap 'ended_by_slurm=yes' TERM

# Runs one replica. The first replica notes which replica is on which node, for `torchx status`. Each replica notes its
# exit code below $1, as srun of Slurm 22.05 ends with 0 when a node is lost. Signals are for the replica, and the shell
# ends after it. proctrack/cgroup signals only this shell, so the shell passes signals on; linuxproc and pgid signal the
# replica themselves, and a second signal would tell the replica not to save.
run_replica() {
    local name child= early= code
    for name in HUP INT QUIT TERM USR1 USR2; do
        if [[ $2 == all ]]; then trap : "$name"; else trap "kill -$name \$child 2> /dev/null || early=$name" "$name"; fi
    done
    ((SLURM_PROCID)) || echo "$SLURM_STEP_NODELIST $SLURM_STEP_TASKS_PER_NODE" > "$1/layout"
    # A shell gives commands in the background no input and lets them ignore INT and QUIT.
    (trap - INT QUIT; replica) <&0 &
    child=$!
    [[ $early ]] && kill "-$early" "$child"
    while wait "$child"; kill -0 "$child" 2> /dev/null; do :; done # returns early when a signal comes
    wait "$child"
    code=$?
    echo "$code of $SLURM_STEP_NUM_TASKS" > "$1/ended/$SLURM_PROCID"
    return "$code"
}

# The processes of a replica that Slurm signals: the first, or all.
signalled=first
[[ $(scontrol show config) =~ ProctrackType\ *=\ *proctrack/(linuxproc|pgid) ]] && signalled=all

# Ends the remaining replicas once the others have had time to save after the first failure. srun's own --wait would
# also count from a replica that succeeded, and end replicas that have more to do.
end_after_failure() {
    grep -qm 1 "^$failed_replica" < <(tail --pid=$$ --lines="+$1" -f "$log") || return
    sleep "$wait_seconds"
    report "ending the replicas that are left $wait_seconds s after the first failure"
    kill "$step"
}

# `wait` returns early when a signal comes. The whole environment is passed on even where sbatch passed on none
# (SBATCH_EXPORT=NONE).
lines=$(wc -l < "$log")
srun --kill-on-bad-exit=0 --wait=0 --distribution=block --open-mode="$open_mode" --export=ALL \
    --output="${record//%/%%}/$role-%t.out" --error="${record//%/%%}/$role-%t.err" "${container_args[@]}" \
    "${srun_args[@]}" bash -c "$(declare -f run_replica replica); run_replica \"\$@\"" bash "$record" "$signalled" &
step=$!
end_after_failure "$((lines + 1))" &
watcher=$!
[[ $warned ]] && kill -USR1 "$step"
while wait "$step"; kill -0 "$step" 2> /dev/null; do :; done
wait "$step"
code=$?
kill "$watcher" 2> /dev/null
outcome=$(cat "$outcome_file" 2> /dev/null)
[[ $outcome == "$saved_word "* ]] && outcome= # of a checkpoint on the way

if [[ $outcome == "$finished_word"* ]]; then
    end "succeeded: $outcome" 0
elif [[ $outcome == "$wrong_input_words"* ]]; then
    end "failed: $outcome" "$wrong_input_code"
elif [[ $code == 0 && ! $outcome ]]; then
    ends=$(cat "$record"/ended/* 2> /dev/null)
    replicas=$(sed -n '1s/.* //p' <<< "$ends")
    proofs=$(grep -c '^0 ' <<< "$ends")
    [[ $proofs == "$replicas" ]] && end "succeeded" 0
    again "a node of $nodes was lost: only $proofs of ${replicas:-all} replicas ended with 0"
fi

# Slurm's signal may reach the ranks before this script. A job that Slurm ends is COMPLETING by then.
[[ $outcome ]] || sleep 2
for pause in 1 1 2 4; do
    [[ $ended_by_slurm || $(scontrol show job "$id") != *JobState=COMPLETING* ]] && break
    sleep "$pause"
done

if [[ $ended_by_slurm ]]; then
    reason=$(grep -o "JOB $SLURM_JOB_ID ON .* CANCELLED AT .*" "$log" | tail -n 1)
    due_to=${reason##*DUE TO } due_to=${due_to% \*\*\*}
    case $reason in
        "") ;; # TERM came to this script alone
        *"DUE TO TIME LIMIT"*) [[ $outcome ]] || fail "time limit, and nothing was saved" ;;
        *"DUE TO"*) again "${outcome:-${due_to,,}, and nothing was saved}" ;;
        *) end "cancelled${outcome:+: $outcome}" 1 ;;
    esac
fi

[[ $outcome ]] && again "$outcome"
[[ $warned ]] && again "stop requested before anything was saved"

if scontrol show job "$id" | grep -q 'PreemptTime=[0-9]'; then
    again "preempted before anything was saved"
fi

lost=$(lost_node)
if [[ $lost ]]; then
    keep "$lost" blamed
    again "the node $lost was lost"
fi

silent=$(silent_nodes)
if [[ $silent ]]; then
    [[ $silent == "$nodes" ]] || tr , '\n' <<< "$silent" >> "$record/blamed"
    again "no answer from $silent"
fi

fail "$(cause)"
