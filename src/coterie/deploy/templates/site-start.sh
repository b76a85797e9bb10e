#!/usr/bin/env bash
# Connect this site to the federation: it trains whenever the server asks. It starts again when it crashes (the server
# refuses it for about 60 seconds after that); Ctrl-C or SIGTERM ends it. --warm keeps Python ready between rounds.
@{common}
SERVER="${COTERIE_SERVER:-@{address}:@{port}}"
PORT="${COTERIE_SITE_PORT:-@{site_port}}" # on this machine only
@{again}
umask 077
isolation=subprocess
if [ "${1:-}" = --warm ]; then
  isolation=process
  again python -m coterie.deploy.warm --runtime-api-address "127.0.0.1:$PORT" --insecure &
fi
again flower-supernode --superlink "$SERVER" --root-certificates ca.crt --auth-supernode-private-key site.key \
  --host 127.0.0.1 --port "$PORT" --isolation "$isolation" \
  --node-config "client-id=\"@{client}\" site-file=\"$PWD/site.yaml\"" &
wait
