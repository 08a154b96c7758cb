# Assigned before, by script.py: job_dir log role max_retries max_free_restarts open_mode srun_args environment_file
# index_folder wait_seconds outcome_variable rank0_variable finished_word saved_word stopped_word stopped_code
# wrong_input_words wrong_input_code.

report() { printf '[torchx] %(%F %T)T %s\n' -1 "$*"; }

record=$job_dir/slurm-$SLURM_JOB_ID
outcome_file=$record/outcome
restarts=${SLURM_RESTART_COUNT:-0} # counted by Slurm: a full disk must not let a job start again for ever
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd ,)

# Writes the line $1 to the end of the file $2 of the record, if need be once a full disk has space again.
keep() {
    local pause
    for pause in 1 2 4 8 16; do
        { mkdir -p "$record" && printf '%s\n' "$1" >> "$record/$2"; } 2> /dev/null && return
        report "cannot write to $record; trying again in $pause s"
        sleep "$pause"
    done
    return 1
}

keep "$(printf '%(%F %T)T' -1) $nodes" attempts || {
    report "cannot write to $job_dir: the job directory must be on storage that all nodes share, and not full"
    exit 1
}

note() { report "$1"; printf '%s\n' "$1" > "$record/state"; }
end() { note "$1"; exit "$2"; }

# Ends a job whose restart number $1 is due for the reason $2, if too many before it have gained no checkpoint.
bound() {
    local since=0 step=0 saved idle
    read -r since step 2> /dev/null < "$record/gained"
    saved=$(sed -n 's/.*step-0*\([0-9]\+\)$/\1/p' "$outcome_file" 2> /dev/null)
    ((${saved:-0} > step)) && since=$1 && echo "$1 $saved" > "$record/gained"
    ((idle = $1 - since, idle <= max_retries + max_free_restarts)) && return
    end "failed: no step gained in $((idle - 1)) restarts (-cfg max_free_restarts=$max_free_restarts); at last $2" 1
}

# Prints nodes on which two attempts failed, and those that are excluded anyway, if enough others are left to choose.
bad_nodes() {
    local job left bad
    bad=$(sort "$record/blamed" 2> /dev/null | uniq -d)
    job=$(scontrol show job "$SLURM_JOB_ID")
    [[ $bad && $job == *ReqNodeList=\(null\)* ]] || return
    [[ $job =~ ExcNodeList=([^\ \(]+) ]] && bad+=$'\n'$(scontrol show hostnames "${BASH_REMATCH[1]}")
    left=$(sinfo -h -N -p "$SLURM_JOB_PARTITION" -o %N | sort -u | grep -cvxF "$bad")
    ((left < SLURM_JOB_NUM_NODES)) || sort -u <<< "$bad" | paste -sd ,
}

# Keeps the nodes $1 from the next attempt, which Slurm allows only once the job waits. Then it also signals everything
# that this script has started, so a command may have to be repeated.
exclude() {
    local pause
    for pause in 0 1 2; do
        sleep "$pause"
        scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$1" && break
    done
    report "two attempts failed on some: excluding $1"
}

# Puts the job back into the queue for the reason $1, unless Slurm has done so. A controller that is away comes back,
# and the allocation lasts until its time limit. A signal to the whole job ends scontrol without a word.
again() {
    local answer bad pause=1
    bound "$((restarts + 1))" "$1"
    note "requeued: $1"
    bad=$(bad_nodes)
    until answer=$(scontrol requeue "$SLURM_JOB_ID" 2>&1) || [[ $answer =~ [Pp]ending ]]; do
        [[ ! $answer || $answer =~ [Cc]ontact|[Cc]onnect|[Cc]ommunication|[Tt]imed\ out ]] \
            || end "failed: $1; and Slurm did not requeue the job: $answer" "${2:-$stopped_code}"
        report "${answer:-scontrol was ended}; asking again in $pause s"
        sleep "$pause"
        ((pause = pause < 30 ? pause * 2 : 30))
    done
    [[ $bad ]] && exclude "$bad"
    exit "$stopped_code"
}

last=$(cat "$record/state" 2> /dev/null)
if [[ $last == succeeded* ]]; then
    report "the job is done and does not start again"
    exit 0
fi
bound "$restarts" "$last"

# With this, `torchx status`, `log` and `list` also find a job that plain sbatch submitted.
index=${XDG_STATE_HOME:-$HOME/.local/state}/$index_folder/$SLURM_CLUSTER_NAME
mkdir -p "$index" && printf '%s\n' "$job_dir" > "$index/$SLURM_JOB_ID"

setup
. "$job_dir/$environment_file" || end "failed: cannot read $job_dir/$environment_file" 1

export "$rank0_variable=${nodes%%,*}" "$outcome_variable=$outcome_file"
rm -rf "$outcome_file" "$record/layout" "$record/ended"
mkdir "$record/ended"
note "running on $nodes"

# USR1 comes before the time limit, before some preemptions, or by `scancel --signal=USR1 --batch`; srun passes it to
# every rank. TERM comes when Slurm ends the job; the ranks get theirs from Slurm.
step=
warned=
ended_by_slurm=
trap 'report "stop requested"; warned=yes; ${step:+kill -USR1 "$step"}' USR1
trap 'ended_by_slurm=yes' TERM

# Runs one replica. The first notes which of them is on which node, for `torchx status`; each notes its exit code below
# $1, as srun of Slurm 22.05 ends with 0 when a node is lost. Signals are for the replica, after which the shell ends.
run_replica() {
    trap : HUP INT QUIT TERM USR1 USR2
    ((SLURM_PROCID)) || echo "$SLURM_STEP_NODELIST $SLURM_STEP_TASKS_PER_NODE" > "$1/layout"
    (replica)
    local code=$?
    echo "$code of $SLURM_STEP_NUM_TASKS" > "$1/ended/$SLURM_PROCID"
    return "$code"
}

# When the first replica has ended, the others get time to save. `wait` returns early when a signal comes. All of the
# environment is passed on even where sbatch passed on none (SBATCH_EXPORT=NONE).
srun --kill-on-bad-exit=0 --wait="$wait_seconds" --distribution=block --open-mode="$open_mode" --export=ALL \
    --output="${record//%/%%}/$role-%t.out" --error="${record//%/%%}/$role-%t.err" "${srun_args[@]}" \
    bash -c "$(declare -f run_replica replica); run_replica \"\$1\"" bash "$record" &
step=$!
while wait "$step"; kill -0 "$step" 2> /dev/null; do :; done
wait "$step"
code=$?
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

# Prints what the log has of this attempt.
this_attempt() { tac "$log" | sed '/^\[torchx\] .* running on /q' | tac; }

# Prints srun's first message on a replica in this attempt, or else the exit code.
cause() {
    local first='s/^srun: error: \([^:]*\): tasks\? \([^:]*\): \(.*\)/replica \2 on \1: \3/p' found
    found=$(this_attempt | sed -n "$first" | head -n 1)
    found=${found:-exit code $code}
    if { echo "$found"; tail -qc 4000 "$record/$role"-*.err 2> /dev/null; } | grep -qi 'oom.kill\|out of memory'; then
        found="out of memory ($found)"
    elif [[ $found =~ code\ ([0-9]+)$ ]] && ((BASH_REMATCH[1] > 128)); then
        found="$found (SIG$(kill -l "$((BASH_REMATCH[1] - 128))"))"
    fi
    echo "$found"
}

# Ends the job because of $1, or requeues it if a retry is left.
fail() {
    local failures=$(($(grep -c . "$record/failures" 2> /dev/null) + 1))
    ((failures > max_retries)) && end "failed: $1" "$code"
    keep "$1" failures || end "failed: $1; not retried, as failures cannot be counted on this disk" "$code"
    [[ $1 =~ \ on\ ([^:\ ]+): ]] && keep "${BASH_REMATCH[1]}" blamed
    again "failure $failures of at most $max_retries that are retried: $1" "$code"
}

# Slurm's signal may reach the ranks before it reaches this script.
[[ $outcome ]] || sleep 2

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

if scontrol show job "$SLURM_JOB_ID" | grep -q 'PreemptTime=[0-9]'; then
    again "preempted before anything was saved"
fi

# A node that is up again already, or whose slurmd has died: srun misses the step there, and kills the other replicas.
lost=$(this_attempt | sed -n 's/.*missing step on node \([0-9]\+\).*/\1/p' | head -n 1)
if [[ $lost ]]; then
    lost=$(cut -d , -f $((lost + 1)) <<< "$nodes")
    keep "$lost" blamed
    again "the node $lost was lost"
fi

# A node that went down shows first as a failure of the others.
answer=$(timeout 60 srun --overlap --quiet --export=ALL --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" \
    --ntasks-per-node=1 bash -c 'echo "$SLURMD_NODENAME"') || {
    silent=$(tr , '\n' <<< "$nodes" | grep -vxF "$answer")
    [[ $answer ]] && echo "$silent" >> "$record/blamed"
    again "no answer from $(paste -sd , <<< "$silent")"
}

fail "$(cause)"
