#!/usr/bin/env bash
# Start the server: the SuperLink, which relays messages, and the SuperExec, which starts a run's server side.
# Both start again when they crash; Ctrl-C or SIGTERM ends them. What was received is kept in superlink.db.
#
# One port carries the sites' messages and the control of the federation, and for the control Flower asks for no key:
# who reaches it can run code at every site. So it listens on this machine only; @{exposure}
@{common}
@{connect}
BIND="${COTERIE_BIND:-127.0.0.1}"
PORT=@{inner_port}
@{again}
umask 077
again flower-superlink --host "$BIND" --port "$PORT" --isolation process --database superlink.db \
  --ssl-certfile server.crt --ssl-keyfile server.key --ssl-ca-certfile ca.crt \
  --enable-supernode-auth --disable-runtime-dependency-installation &
again flower-superexec --runtime-api-address "127.0.0.1:$PORT" --root-certificates ca.crt &
wait
