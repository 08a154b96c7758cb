# Assigned before, by script.py: job_dir log role max_retries open_mode srun_args environment_file index_folder
# wait_seconds outcome_variable rank0_variable finished_word stopped_code wrong_input_words wrong_input_code.

report() { printf '[torchx] %(%F %T)T %s\n' -1 "$*"; }

record=$job_dir/slurm-$SLURM_JOB_ID
mkdir -p "$record" || { report "cannot write to $job_dir: the job directory must be on storage that all nodes share"; exit 1; }

note() { report "$1"; printf '%s\n' "$1" > "$record/state"; }
end() { note "$1"; exit "$2"; }

# Puts the job back into the queue for the reason $1. Slurm may have requeued it already. A controller that is away
# comes back, and the allocation lasts until its time limit.
again() {
    local answer pause=1
    note "requeued: $1"
    until answer=$(scontrol requeue "$SLURM_JOB_ID" 2>&1); do
        [[ $answer =~ [Cc]ontact|[Cc]onnect|[Cc]ommunication|[Tt]imed\ out ]] \
            || end "failed: $1; and Slurm did not requeue the job: $answer" "${2:-$stopped_code}"
        report "$answer; asking again in $pause s"
        sleep "$pause"
        ((pause = pause < 30 ? pause * 2 : 30))
    done
    exit "$stopped_code"
}

if [[ $(cat "$record/state" 2> /dev/null) == succeeded* ]]; then
    report "the job is done and does not start again"
    exit 0
fi

# With this, `torchx status`, `log` and `list` also find a job that plain sbatch submitted.
index=${XDG_STATE_HOME:-$HOME/.local/state}/$index_folder/$SLURM_CLUSTER_NAME
mkdir -p "$index" && printf '%s\n' "$job_dir" > "$index/$SLURM_JOB_ID"

setup
. "$job_dir/$environment_file" || end "failed: cannot read $job_dir/$environment_file" 1

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd ,)
printf '%(%F %T)T %s\n' -1 "$nodes" >> "$record/attempts"
outcome_file=$record/outcome
export "$rank0_variable=${nodes%%,*}" "$outcome_variable=$outcome_file"
rm -f "$outcome_file" "$record/layout"
note "running on $nodes"

# USR1 comes before the time limit, before some preemptions, or by `scancel --signal=USR1 --batch`; srun passes it to
# every rank. TERM comes when Slurm ends the job; the ranks get theirs from Slurm.
step=
ended_by_slurm=
trap 'report "stop requested"; ${step:+kill -USR1 "$step"}' USR1
trap 'ended_by_slurm=yes' TERM

# Notes in $1 which replica is on which node, for `torchx status`.
place() { ((SLURM_PROCID)) || echo "$SLURM_STEP_NODELIST $SLURM_STEP_TASKS_PER_NODE" > "$1"; }

# When the first replica has ended, the others get time to save. `wait` returns early when a signal comes.
srun --kill-on-bad-exit=0 --wait="$wait_seconds" --distribution=block --open-mode="$open_mode" \
    --output="$record/$role-%t.out" --error="$record/$role-%t.err" "${srun_args[@]}" \
    bash -c "$(declare -f place replica); place \"\$1\"; replica" bash "$record/layout" &
step=$!
while wait "$step"; kill -0 "$step" 2> /dev/null; do :; done
wait "$step"
code=$?
outcome=$(cat "$outcome_file" 2> /dev/null)

if [[ $outcome == "$finished_word"* || ($code == 0 && -z $outcome) ]]; then
    end "succeeded${outcome:+: $outcome}" 0
fi
[[ $outcome == "$wrong_input_words"* ]] && end "failed: $outcome" "$wrong_input_code"

# Prints srun's first message on a replica in this attempt, or else the exit code.
cause() {
    local first='s/^srun: error: \([^:]*\): tasks\? \([^:]*\): \(.*\)/replica \2 on \1: \3/p' found
    found=$(tac "$log" | sed '/\] running on /q' | tac | sed -n "$first" | head -n 1)
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
    local failures=$(($(cat "$record/failures" 2> /dev/null) + 1))
    echo "$failures" > "$record/failures"
    ((failures > max_retries)) && end "failed: $1" "$code"
    again "failure $failures of at most $max_retries that are retried: $1" "$code"
}

# Slurm's signal may reach the ranks before it reaches this script.
[[ $outcome ]] || sleep 2

if [[ $ended_by_slurm ]]; then
    case $(grep -o "JOB $SLURM_JOB_ID ON .* CANCELLED AT .*" "$log" | tail -n 1) in
        "") ;; # TERM came to this script alone
        *"DUE TO TIME LIMIT"*) [[ $outcome ]] || fail "time limit, and nothing was saved" ;;
        *"DUE TO"*) note "requeued by Slurm${outcome:+: $outcome}"; exit "$stopped_code" ;;
        *) end "cancelled${outcome:+: $outcome}" 1 ;;
    esac
fi

[[ $outcome ]] && again "$outcome"

if scontrol show job "$SLURM_JOB_ID" | grep -q 'PreemptTime=[0-9]'; then
    again "preempted before anything was saved"
fi

# A node that went down shows first as a failure of the others.
probe=(srun --overlap --quiet --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1)
timeout 60 "${probe[@]}" true || again "one of $nodes does not answer"

fail "$(cause)"
