# The shell of a page: see reader_test.go. It runs each file that fd 3 names, with its output in
# FILE.out, and writes a line to fd 4 once that is done. A command that fails ends it.
set -euo pipefail
trap : INT # ends only what runs
trap stop_servers EXIT
exec {silent}<> <(:) # has nothing to read: waiting for it costs no process
declare -A servers # process ids by address

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
  # A test that is killed leaves it behind for some minutes.
  timeout 300 "$QLOGD" "$@" </dev/null >>"$LOGS/$addr" 2>&1 3<&- 4>&- &
  servers[$addr]=$!
  until answers "$scheme" "$addr" "$path"; do
    if ! running "$addr"; then
      tail -n 3 "$LOGS/$addr"
      return 1
    fi
    pause
  done
}

running() { kill -0 "${servers[$1]-}" 2>/dev/null; }
pause() { read -rt 0.02 -u "$silent" || true; }

# answers reports whether a server serves a path. It starts a process only for TLS.
answers() {
  local status= web
  if [ "$1" = https ]; then
    curl -qkfso /dev/null "https://$2/$3"
    return
  fi
  { exec {web}<>"/dev/tcp/${2/://}"; } 2>/dev/null || return 1
  printf 'GET /%s HTTP/1.0\r\nHost: %s\r\n\r\n' "$3" "$2" >&"$web"
  read -r status <&"$web" || true
  exec {web}>&-
  [[ $status == *' 200 '* ]]
}

stop_server() {
  kill "${servers[$1]-}" 2>/dev/null || return 0
  while running "$1"; do pause; done
}

stop_servers() {
  local addr
  for addr in "${!servers[@]}"; do stop_server "$addr"; done
}

while read -r -u 3 block; do
  . "$block" >"$block.out" 2>&1 </dev/null
  echo >&4
done
