#!/usr/bin/env bash
# Admit the sites: register their public keys. Once, while the server runs. A site that has made a key of its own
# sends its new site.key.pub, which replaces the file in sites/.
@{common}
@{connect}
failed=0
for key in ${@:-sites/*.pub}; do
  name="$(basename "$key" .pub)"
  flwr supernode register "$key" coterie --name "$name" || { echo "$name was not registered; is it already?" >&2; failed=1; }
done
flwr supernode list coterie
exit $failed
