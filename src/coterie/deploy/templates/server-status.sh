#!/usr/bin/env bash
# Who is connected: the sites' numbers and names, then what Flower knows of these numbers.
@{common}
@{connect}
[ -f nodes.txt ] && cat nodes.txt
exec flwr supernode list coterie
