# What an attempt needs before its replicas start: functions for batch.sh, which follows and sets variables they use.

# Runs the lines of `setup`. One that fails ends the job, as does `exit`; within functions, files and subshells that the
# lines call, commands may fail.
prepare() {
    set -o errtrace
    trap 'code=$?; [[ ${FUNCNAME[0]} != setup || $BASH_SUBSHELL != 0 ]] || stop_at "$LINENO"' ERR
    trap 'code=$?; ((code > 128)) || stop_at' EXIT
    setup
    trap - ERR EXIT
    set +o errtrace
}

# Ends the job as a line of `setup` has failed, unless a signal has ended that line. The number $1 is the line's, or unset.
stop_at() {
    [[ $warned ]] && return
    trap - ERR EXIT
    local line=${1:+$(sed -n "$1s/^ *//p" "$0")} ended_with=$code
    ((code)) || code=1
    fail "setup: ${line:-a line that exits} ended with exit code $ended_with"
}

# Prints a port of this host, which is that of replica 0, that no process holds. Each job begins to look at another port,
# and after each restart at another one, too: a process may take the port before replica 0 does.
free_port() {
    local held try port
    held=$(awk '{ print $2 }' /proc/net/tcp /proc/net/tcp6 2> /dev/null) # addresses, as HEX:PORT
    for ((try = 0; try < ports; try++)); do
        port=$((first_port + (SLURM_JOB_ID + (restarts + try) * 1009) % ports))
        [[ $held == *:$(printf %04X "$port")* ]] && continue
        ((try)) && report "$try ports of ${nodes%%,*} are held by other processes: replicas meet at $port" >&2
        echo "$port"
        return
    done
    return 1
}
