#!/usr/bin/env bash
# Fork with nothing but a socket: a request is one PUB, its reports come by one SUB (docs/protocol.md).
# usage: bare_nats.sh REQUEST.json DIRECTIVE [RUN_ID]     prints each report as a line of JSON; Ctrl-C aborts the run
# Where the `nats` command is installed, the same is `nats sub live.fork.ID.reports` and `nats pub agent.fork.ID.events "…"`.
set -uo pipefail
export LC_ALL=C # lengths are bytes
die() { echo "bare_nats: $2" >&2; exit "$1"; }
[ $# -ge 2 ] && [ -r "$1" ] || die 2 "usage: bare_nats.sh REQUEST.json DIRECTIVE [RUN_ID]"
address=${NATS_URL:-nats://127.0.0.1:4222} run=${3:-bare-$$-$RANDOM}
address=${address#nats://} version=${ANTHROPIC_VERSION:-2023-06-01}
quoted() { # a JSON string; between its tokens a body may have line ends and tabs
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"} text=${text//$'\n'/\\n} text=${text//$'\r'/\\r}
  printf '"%s"' "${text//$'\t'/\\t}"
}
pub() { printf 'PUB %s %s%d\r\n%s\r\n' "$1" "$2" "${#3}" "$3" >&3; } # subject, reply subject and a space, payload

{ exec 3<>"/dev/tcp/${address%:*}/${address##*:}"; } 2>/dev/null || die 3 "there is no NATS at $address"
read -r -t 5 _ info <&3 || die 3 "$address does not speak NATS"
[[ $info != *'"auth_required":true'* && $info != *'"tls_required":true'* ]] || die 3 "$address wants keys or TLS"
request="{\"v\":1,\"kind\":\"requested\",\"headers\":{\"anthropic-version\":\"$version\"},"
request+="\"directive\":$(quoted "$2"),\"snapshot\":{\"text\":$(quoted "$(cat "$1")")}}"
most=${info#*\"max_payload\":} most=${most%%[,\}]*}
[ "${#request}" -le "$most" ] || die 2 "the request has ${#request} bytes, a message at most $most; use blobs"
printf 'CONNECT {"verbose":false,"headers":false,"name":"bare"}\r\n' >&3
printf 'SUB live.fork.%s.reports 1\r\nSUB _INBOX.%s 2\r\n' "$run" "$run" >&3
trap 'pub "agent.fork.$run.events" "" "{\"v\":1,\"kind\":\"abort\",\"note\":\"interrupted\"}"; trap - INT TERM' INT TERM # a second one leaves
pub "agent.fork.$run.events" "_INBOX.$run " "$request"

left=3 rest= # seconds for the server's word that the request is stored; after that the run takes as long as it takes
while :; do
  read -r -t 1 line <&3 # not longer: a signal that comes just before a read is heard only after it
  case $? in
    0) line=$rest$line rest= ;;
    1) die 3 "the connection to $address was lost; the run $run goes on" ;;
    *) # a second has passed, or a signal came
      rest+=$line
      [ -z "$left" ] || [ $((left -= 1)) -gt 0 ] || die 3 "nobody stores requests at $address: start a daemon, or use nexofork provision"
      continue ;;
  esac
  read -r verb _ sid size <<<"${line%$'\r'}"
  case $verb in
    PING) printf 'PONG\r\n' >&3 ;;
    -ERR) die 3 "NATS says: $line" ;;
    MSG)
      payload=
      until [ "${#payload}" -ge "$size" ]; do # a signal may interrupt it
        IFS= read -r -N $((size - ${#payload})) piece <&3
        [ $? -ne 1 ] || die 3 "the connection to $address was lost; the run $run goes on"
        payload+=$piece
      done
      read -r _ <&3
      if [ "$sid" = 2 ]; then
        [[ $payload != *'"error"'* ]] || die 3 "the request was refused: $payload"
        left= && continue
      fi
      printf '%s\n' "$payload"
      [[ $payload == *'"kind":"final"'* ]] || continue
      [[ $payload == *'"status":"completed"'* ]] && exit 0 || exit 1 ;;
  esac
done
