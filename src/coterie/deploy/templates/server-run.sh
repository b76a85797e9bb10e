#!/usr/bin/env bash
# Train: start the experiment and show its log. The first argument, if any, is the run directory.
@{common}
@{connect}
output="${1:-$PWD/runs/$(date +%Y%m%d-%H%M%S)}"
case "$output" in /*) ;; *) output="$OLDPWD/$output" ;; esac
flwr run ../app coterie --stream -c "experiment=\"$PWD/experiment.yaml\" output=\"$output\""
# Flower ends well even where the run did not.
[ -f "$output/summary.json" ] || { echo "the run has not reached its end: $output has no summary.json" >&2; exit 1; }
