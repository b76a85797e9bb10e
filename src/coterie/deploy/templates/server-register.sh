#!/usr/bin/env bash
# Admit the sites: register their public keys. Once, while the server runs. A site that has made a key of its own
# sends its new site.key.pub, which replaces the file in sites/. Arguments are such files; without any, all of sites/.
@{common}
@{connect}
[ $# -gt 0 ] || set -- sites/*.pub
failed=0
for key in "$@"; do
  name="$(basename "$key" .pub)"
  said="$(flwr supernode register "$key" coterie --name "$name" 2>&1)"
  node="$(sed -n 's/.*SuperNode \([0-9][0-9]*\) registered.*/\1/p' <<< "$said")"
  if [ -n "$node" ]; then
    echo "$node $name" >> nodes.txt # Flower lists sites by number only
    echo "$name is registered as $node"
  else
    echo "$said" >&2
    echo "$name was not registered; is it already?" >&2
    failed=1
  fi
done
exit $failed
