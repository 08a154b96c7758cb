# Runs a replica, and ends with an exit code on which the policies of Job and JobSet act.
# Assigned before, by restarts.py: outcome_file rank0_host rank0_variable replicas restarts max_retries
# max_free_restarts most_restarts rank0_wait_seconds finished_word saved_word stopped_word
# stopped_code wrong_input_words wrong_input_code given_up_code.
say() { echo "[torchx] $*"; }

# Ends the attempt with exit code $1; the line $2 is shown by `torchx status`.
end() { say "$2"; echo "$2" > "$outcome_file"; exit "$1"; }

# Ends the attempt with exit code $1 because of $2; the restart uses up no retry, as long as restarts are left. A pod
# knows only how many attempts came before it, so once that number is reached each attempt has to save something.
restart_for_free() {
  case $outcome in *"$saved_word "*) exit "$1" ;; esac
  [ "$restarts" -ge $((max_retries + max_free_restarts)) ] || exit "$1"
  # The replica of rank 0 knows what was saved, and may still be leaving: if it ends first, it decides.
  [ "$replicas" = 1 ] || { sleep 20 & wait $!; }
  end "$given_up_code" "gave up after restart $restarts: this attempt saved nothing, and \
max_free_restarts=$max_free_restarts and max_retries=$max_retries are used up; last: $2"
}

outcome=
trap 'restart_for_free 143 "its pod was taken away before the replica began"' TERM

[ "$restarts" -lt "$most_restarts" ] || end "$given_up_code" "gave up after restart $restarts, the last that a job may have"

# The cause of the last end may need time to pass: 1, 2, 4 ... 32 seconds, and then a minute.
if [ "$restarts" -gt 0 ]; then
  pause=60
  [ "$restarts" -gt 6 ] || pause=$((1 << (restarts - 1)))
  say "restart $restarts begins in $pause s"
  sleep "$pause" & wait $!
fi

# Replica 0 hosts the rendezvous, and must not depend on its own name being known yet.
[ "${rank0_host%%.*}" != "$HOSTNAME" ] || { rank0_host=localhost; export "$rank0_variable=$rank0_host"; }

# The other replicas wait until replica 0 runs, as only running pods have names: it may still pull its image, and
# torchrun gives up after a minute.
began=$(date +%s)
told=
while command -v getent > /dev/null && ! getent hosts "$rank0_host" > /dev/null; do
  [ $(($(date +%s) - began)) -lt "$rank0_wait_seconds" ] || end 1 "replica 0 did not start within \
$rank0_wait_seconds seconds: there is no host $rank0_host"
  [ "$told" ] || say "waits until replica 0 runs: there is no host $rank0_host yet"
  told=yes
  sleep 1 & wait $!
done

taken_away=
# A signal between the start of the replica and the next line must reach the replica too: `$!` tells whether it runs.
before=$!
trap '[ "$!" != "$before" ] || restart_for_free 143 "its pod was taken away before the replica began"
  taken_away=yes; kill -TERM $! 2> /dev/null' TERM
"$@" &
child=$!
trap 'taken_away=yes; kill -TERM $child 2> /dev/null' TERM
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
# A `wait` that a signal interrupts can have seen the end already, without returning its code; another one does.
wait $child 2> /dev/null; again=$?
[ $again = 127 ] || code=$again

# torchrun ends with 1 after any signal, so the outcome that the trainer writes decides.
read -r outcome < "$outcome_file"
case $outcome in
  "$finished_word"*) exit 0 ;;
  "$stopped_word"*) restart_for_free "$stopped_code" "$outcome" ;;
  "$wrong_input_words"*) exit "$wrong_input_code" ;;
  "$saved_word "*) : > "$outcome_file" ;; # or the status would show it in place of the last lines of the log
esac

# Only the replica of rank 0 has the outcome, and it may be any replica: the others wait, as the first to end decides.
[ $code = 0 ] || [ "$replicas" = 1 ] || { sleep 5 & wait $!; }
[ $code = 0 ] || [ ! "$taken_away" ] || restart_for_free $code "its pod was taken away"

# Without an outcome this is a failure like others, whatever the code means to the policies.
case $code in
  "$wrong_input_code" | "$stopped_code" | "$given_up_code")
    say "exit code $code without an outcome: ends with 1"
    exit 1
    ;;
esac
exit $code
