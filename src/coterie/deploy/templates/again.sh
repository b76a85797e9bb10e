command -v @{command} > /dev/null || { echo "@{command} is not there: pip install 'coterie[flower]', or activate its environment" >&2; exit 1; }

# Start a command, and again whenever it ends.
again() {
  trap 'kill "$child" 2> /dev/null; wait "$child"; exit' TERM INT
  while true; do
    "$@" &
    child=$!
    wait "$child"
    echo "$1 has ended with code $?; it starts again in 5 seconds" >&2
    sleep 5 &
    child=$!
    wait "$child"
  done
}
trap 'kill $(jobs -p) 2> /dev/null; wait; exit' TERM INT
