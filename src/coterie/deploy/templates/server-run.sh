#!/usr/bin/env bash
# Train: start the experiment and show its log. The first argument, if any, is the run directory.
@{common}
output="${1:-$PWD/runs/$(date +%Y%m%d-%H%M%S)}"
case "$output" in /*) ;; *) output="$OLDPWD/$output" ;; esac
exec flwr run ../app coterie --stream -c "experiment=\"$PWD/experiment.yaml\" output=\"$output\""
