#!/usr/bin/env bash
# Flower's own commands for this federation. Runs go by the number that run.sh shows first:
#   bash flower.sh list          all runs
#   bash flower.sh log NUMBER    what a run says, from its beginning
#   bash flower.sh stop NUMBER   stop a run; run.sh with the same run directory goes on with it
@{common}
@{connect}
exec flwr "$@"
