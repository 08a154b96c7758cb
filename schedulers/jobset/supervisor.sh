# Runs a replica, and ends with the exit code that the policies of Job and JobSet act on.
# Assigned before, by pod.py: outcome_file rank0_host rank0_variable replicas finished_word stopped_word stopped_code
# wrong_input_words wrong_input_code.
trap 'exit 143' TERM

# Replica 0 hosts the rendezvous, and must not depend on its own name being known yet.
[ "${rank0_host%%.*}" != "$HOSTNAME" ] || { rank0_host=localhost; export "$rank0_variable=$rank0_host"; }

# The others wait until it runs, for only running pods have names: it may still pull its image, and torchrun gives up
# after a minute.
while command -v getent > /dev/null && ! getent hosts "$rank0_host" > /dev/null; do sleep 1; done

"$@" &
child=$!
trap 'kill -TERM $child 2> /dev/null' TERM
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done

# torchrun ends with 1 after any signal, so the outcome that the trainer writes decides.
read -r outcome < "$outcome_file"
case $outcome in
  "$finished_word"*) exit 0 ;;
  "$stopped_word"*) exit "$stopped_code" ;;
  "$wrong_input_words"*) exit "$wrong_input_code" ;;
esac

# Only the replica of rank 0 has the outcome, and it may be any of them: the others wait, for the first to end decides.
[ $code = 0 ] || [ "$replicas" = 1 ] || { sleep 5 & wait $!; }
exit $code
