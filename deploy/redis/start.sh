#!/bin/sh
# start.sh CONFIGURATION: a Redis, or with sentinel.conf a Sentinel, in the current directory. The configuration is copied
# there once, with HOSS_REDIS_PASSWORD (letters and digits) in it; from then on the server keeps it, because it says who
# the master is.
set -eu
umask 077
if [ ! -f "$1" ]; then
  sed "s/PASSWORD/$HOSS_REDIS_PASSWORD/" "$(dirname "$0")/$1" > "$1.new"
  mv "$1.new" "$1"
fi
case "$1" in
  sentinel.conf) exec redis-server "$1" --sentinel ;;
  *) exec redis-server "$1" ;;
esac
