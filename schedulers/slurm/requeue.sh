# How a job ends or is put back into the queue: functions for batch.sh, which follows and sets variables they use.
# Assigned before, by script.py: job_dir log role max_retries max_free_restarts open_mode srun_args container_args
# environment_file index_folder cancelled_file wait_seconds outcome_variable progress_variable progress_name
# saved_step_variable rank0_variable finished_word saved_word stopped_word stopped_code wrong_input_words
# wrong_input_code; and id, by which scontrol knows the job, or the task of an array: the number of an array's last task
# is the array's, too.

# The beginning of srun's message on a replica that has failed.
failed_replica='srun: error: \([^:]*\): tasks\? \([^:]*\): '
# What srun says where a node did not answer it.
node_trouble='on node|node failure|communicat|connect|contact|timed out|not respond|node not available|i/o error'

report() { printf '[torchx] %(%F %T)T %s\n' -1 "$*"; }

# Appends the line $1 to the file $2 of the record; if the disk is full, tries again until it has space.
keep() {
    local pause
    for pause in 1 2 4 8 16; do
        { mkdir -p "$record" && printf '%s\n' "$1" >> "$record/$2"; } 2> /dev/null && return
        report "cannot write to $record; trying again in $pause s"
        sleep "$pause"
    done
    return 1
}

note() { report "$1"; printf '%s\n' "$1" > "$record/state"; }
end() { note "$1"; exit "$2"; }

# Ends a job before its restart number $1, due to the reason $2, if too many restarts before gained no checkpoint. Sets
# `saved_step` to the step of the newest checkpoint.
bound() {
    local since=0 saved idle
    saved_step=0
    read -r since saved_step 2> /dev/null < "$record/gained"
    saved=$(sed -n 's/.*step-0*\([0-9]\+\)$/\1/p' "$outcome_file" 2> /dev/null)
    ((${saved:-0} > saved_step)) && since=$1 saved_step=$saved && echo "$1 $saved" > "$record/gained"
    ((idle = $1 - since, idle <= max_retries + max_free_restarts)) && return
    end "failed: restarts in a row that gained no step: $((idle - 1)) (-cfg max_free_restarts=$max_free_restarts); at last $2" 1
}

# Prints the nodes on which two attempts failed and those that are excluded anyway, if enough other nodes are left.
bad_nodes() {
    local job left bad
    bad=$(sort "$record/blamed" 2> /dev/null | uniq -d)
    job=$(scontrol show job "$id")
    [[ $bad && $job == *ReqNodeList=\(null\)* ]] || return
    [[ $job =~ ExcNodeList=([^\ \(]+) ]] && bad+=$'\n'$(scontrol show hostnames "${BASH_REMATCH[1]}")
    left=$(sinfo -h -N -p "$SLURM_JOB_PARTITION" -o %N | sort -u | grep -cvxF "$bad")
    ((left < SLURM_JOB_NUM_NODES)) || sort -u <<< "$bad" | paste -sd ,
}

# Excludes the nodes $1 from the next attempt, which Slurm allows only once the job waits. By then Slurm also signals
# everything that this script has started, so a command may have to be repeated.
exclude() {
    local pause
    for pause in 0 1 2; do
        sleep "$pause"
        scontrol update "JobId=$id" "ExcNodeList=$1" && break
    done
    report "two attempts failed on some: excluding $1"
}

# Puts the job back into the queue for the reason $1, unless Slurm has done so. A controller that is away comes back,
# and the allocation lasts until its time limit. A signal to the whole job ends scontrol without a message.
again() {
    local answer bad pause=1
    bound "$((restarts + 1))" "$1"
    note "requeued: $1"
    bad=$(bad_nodes)
    until answer=$(scontrol requeue "$id" 2>&1) || [[ $answer =~ [Pp]ending ]]; do
        [[ ! $answer || $answer =~ [Cc]ontact|[Cc]onnect|[Cc]ommunication|[Tt]imed\ out ]] \
            || end "failed: $1; and Slurm did not requeue the job: $answer" "${2:-$stopped_code}"
        report "${answer:-scontrol was ended}; asking again in $pause s"
        sleep "$pause"
        ((pause = pause < 30 ? pause * 2 : 30))
    done
    [[ $bad ]] && exclude "$bad"
    exit "$stopped_code"
}

# Prints the part of the log that is about this attempt.
this_attempt() { tac "$log" | sed '/^\[torchx\] .* running on /q' | tac; }

# Prints a node that went down and is up again, or whose slurmd has died, if there is one: srun misses the step there or
# gets no answer, and kills the other replicas.
lost_node() {
    local number
    number=$(this_attempt | sed -En 's/^srun: .*(missing step on|Cannot communicate with) node ([0-9]+).*/\2/p' | head -n 1)
    [[ ! $number ]] || cut -d , -f $((number + 1)) <<< "$nodes"
}

# Prints the nodes that do not answer: the loss of a node first shows as a failure of the other nodes. srun gets the
# options that the step had, but for MPI and containers, which nothing here needs. If srun itself fails, no node is blamed.
silent_nodes() {
    local said code answered
    said=$(timeout 60 srun "${srun_args[@]}" --mpi=none --overlap --quiet --export=ALL --nodes="$SLURM_NNODES" \
        --ntasks="$SLURM_NNODES" --ntasks-per-node=1 bash -c 'echo "answered: $SLURMD_NODENAME"' 2>&1)
    code=$?
    ((code == 0)) && return
    answered=$(sed -n 's/.*answered: //p' <<< "$said")
    if [[ $answered || $code == 124 ]] || grep -qiE "$node_trouble" <<< "$said"; then
        tr , '\n' <<< "$nodes" | grep -vxF "$answered" | paste -sd ,
    else
        report "the nodes cannot be asked whether they answer: $(said_by_srun <<< "$said")" >&2
    fi
}

# Prints the errors of srun in the text on stdin, in one line.
said_by_srun() {
    sed -nE '/^srun: (error|fatal|(unrecognized|invalid) option|option )/ s/^srun: (error: |fatal: )? */; /p' \
        | tr -d '\n' | cut -c 3-1000
}

# Prints why the step failed: srun's first message about a replica in this attempt, or else what srun says of itself, or
# else the exit code.
cause() {
    local first="s/^$failed_replica\(.*\)/replica \2 on \1: \3/p" found signal
    found=$(this_attempt | sed -n "$first" | head -n 1)
    [[ $found ]] || found=$(this_attempt | said_by_srun) found=${found:+srun: $found}
    found=${found:-exit code $code}
    if { echo "$found"; tail -qc 4000 "$record/$role"-*.err 2> /dev/null; } | grep -qi 'oom.kill\|out of memory'; then
        found="out of memory ($found)"
    elif [[ $found =~ code\ ([0-9]+)$ ]] && ((BASH_REMATCH[1] > 128)) \
        && signal=$(kill -l $((BASH_REMATCH[1] - 128)) 2> /dev/null); then
        found="$found (SIG$signal)"
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
