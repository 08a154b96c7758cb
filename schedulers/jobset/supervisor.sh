# Runs a replica, and ends with the exit code that the policies of Job and JobSet act on.
trap 'exit 143' TERM

# Replica 0 hosts the rendezvous, and must not depend on its own name being known yet.
[ "${TORCHX_RANK0_HOST%%.*}" != "$HOSTNAME" ] || export TORCHX_RANK0_HOST=localhost

# The others wait until it runs, for only running pods have names: it may still pull its image, and torchrun gives up
# after a minute.
while command -v getent > /dev/null && ! getent hosts "$TORCHX_RANK0_HOST" > /dev/null; do sleep 1; done

"$@" &
child=$!
trap 'kill -TERM $child 2> /dev/null' TERM
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done

# torchrun ends with 1 after any signal; the outcome that the trainer leaves says more.
read -r outcome < "$TORCHX_OUTCOME_FILE"
case $outcome in
  finished*) exit 0 ;;
  stopped*) exit 75 ;;
esac

# Only the replica of rank 0 has the outcome, and it may be any: the others let its word be heard first.
[ $code = 0 ] || [ $TORCHX_REPLICAS = 1 ] || { sleep 5 & wait $!; }
exit $code
