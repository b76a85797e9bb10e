#!/usr/bin/env bash
# Train: start the experiment and show its log. Arguments, if any: the run directory, and another file than
# experiment.yaml. Several can run at a time.
@{common}
@{connect}
output="${1:-$PWD/runs/$(date +%Y%m%d-%H%M%S)}"
experiment="${2:-$PWD/experiment.yaml}"
case "$output" in /*) ;; *) output="$OLDPWD/$output" ;; esac
case "$experiment" in /*) ;; *) experiment="$OLDPWD/$experiment" ;; esac
flwr run ../app coterie --stream -c "experiment=\"$experiment\" output=\"$output\""
# Flower ends well even where the run did not.
[ -f "$output/summary.json" ] || { echo "the run has not reached its end: $output has no summary.json" >&2; exit 1; }
