#!/usr/bin/env bash
# Train: start the experiment and show its log. The first argument, if any, is the run directory; one that was
# interrupted is continued. Ctrl-C ends the watching, not the run.
@{common}
@{connect}
output="${1:-$PWD/runs/$(date +%Y%m%d-%H%M%S)}"
case "$output" in /*) ;; *) output="$OLDPWD/$output" ;; esac
left=
trap 'left=1' INT
flwr run ../app coterie --stream -c "experiment=\"$PWD/experiment.yaml\" output=\"$output\""
if [ -n "$left" ]; then
  echo "the run goes on at the server; with its number, which is above: bash flower.sh log NUMBER, or stop NUMBER" >&2
  exit 130
fi
# Flower ends well even where the run did not.
[ -f "$output/summary.json" ] || { echo "the run has not reached its end: $output has no summary.json" >&2; exit 1; }
