# What each block of commands begins with: see docs_test.go.
set -euo pipefail

# The real program. A server runs on beside the page, as in a terminal of its own.
qlogd() {
  if [ "${1-}" = serve ]; then
    serve "$@"
  elif [ -e "$XDG_CONFIG_HOME/qlogd/contexts.yaml" ]; then
    env -u QLOGD_ADDR "$QLOGD" "$@" # which would set the page's contexts aside
  else
    "$QLOGD" "$@"
  fi
}
./bin/qlogd() { qlogd "$@"; }
go() { (cd "$REPO" && command go "$@"); }
make() {
  [ "$*" = run ] || { echo "make $* is not run here" >&2; return 2; }
  qlogd serve
}

# serve starts a server and waits until it serves. One that has its address is stopped first.
serve() {
  local addr=$QLOGD_HTTP_ADDR scheme=http path=readyz before= word
  for word in "$@"; do
    case $before in
    --http-addr) addr=$word ;;
    --node-id) local -x QLOGD_DATA_DIR=${QLOGD_DATA_DIR-./data-$word} ;; # as on a machine of its own
    esac
    case $word in
    --join | --bootstrap-expect) path=healthz ;; # it may wait for others
    --tls-cert) scheme=https ;;
    esac
    before=$word
  done
  stop_server "$addr"
  rm -f "$NODES/$addr.ended"
  # A test that is killed leaves it behind for some minutes.
  {
    timeout 300 "$QLOGD" "$@" &
    echo $! >"$NODES/$addr.pid"
    wait $! || true
    touch "$NODES/$addr.ended"
  } </dev/null >>"$NODES/$addr.log" 2>&1 &
  until curl -qkfso /dev/null "$scheme://$addr/$path"; do
    if [ -e "$NODES/$addr.ended" ]; then
      tail -n 3 "$NODES/$addr.log"
      return 1
    fi
    sleep 0.02
  done
}

stop_server() {
  if [ -e "$NODES/$1.pid" ]; then
    kill "$(cat "$NODES/$1.pid")" 2>/dev/null || true
    rm "$NODES/$1.pid"
    until [ -e "$NODES/$1.ended" ]; do sleep 0.02; done
  fi
}

stop_servers() {
  local pid
  for pid in "$NODES"/*.pid; do
    if [ -e "$pid" ]; then stop_server "$(basename "$pid" .pid)"; fi
  done
}

if [ -e "$STATE" ]; then . "$STATE"; fi
set -a # what a block defines, later blocks have
