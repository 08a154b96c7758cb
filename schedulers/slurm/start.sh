# What an attempt needs before its replicas start: a function for batch.sh, which follows and sets variables it uses.

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
