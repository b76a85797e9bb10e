#!/usr/bin/env bash
# Train: start the experiment and show its log. Arguments, if any: the run directory (one that was interrupted is
# continued), and another file than experiment.yaml. Several can run at a time. Ctrl-C ends the watching, not the run.
@{common}
@{connect}
output="${1:-$PWD/runs/$(date +%Y%m%d-%H%M%S)}"
experiment="${2:-$PWD/experiment.yaml}"
case "$output" in /*) ;; *) output="$OLDPWD/$output" ;; esac
case "$experiment" in /*) ;; *) experiment="$OLDPWD/$experiment" ;; esac
export PYTHONUNBUFFERED=1
said="$(mktemp)"
trap 'rm -f "$said"' EXIT
left=
trap 'left=1' INT
flwr run ../app coterie --stream -c "experiment=\"$experiment\" output=\"$output\"" 2>&1 | tee "$said"
run="$(sed -n 's/.*started run \([0-9][0-9]*\).*/\1/p' "$said")"
if [ -z "$run" ] && [ -z "$left" ]; then
  echo "no run was started: bash start.sh must be running here, and takes some seconds to be ready" >&2
  exit 1
fi
# Where only the connection was lost, the run goes on.
away=0
while [ -z "$left" ] && [ -n "$run" ] && [ ! -f "$output/summary.json" ] && [ "$away" -lt 12 ]; do
  case "$(flwr list coterie --run-id "$run" --format json 2> /dev/null)" in
    *'"finished:'*) break ;;
    *'"success": true'*) away=0; flwr log "$run" coterie --stream ;;
    *) away=$((away + 1)); echo "the server does not answer; trying again" >&2; sleep 5 ;;
  esac
done
if [ -n "$left" ]; then
  echo "the run goes on at the server: bash flower.sh log $run shows it, bash flower.sh stop $run ends it" >&2
  exit 130
fi
# Flower ends well even where the run did not.
[ -f "$output/summary.json" ] || { echo "the run has not reached its end: $output has no summary.json" >&2; exit 1; }
