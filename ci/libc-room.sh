#!/usr/bin/env bash
# Only a directory named sys, or a file named sys.rs, speaks to the C library:
# no other source of the library or the command names the crate. Comments may.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rooms=()
for room in src cli/src; do
    [ -d "$room" ] && rooms+=("$room")
done
if [ "${#rooms[@]}" -eq 0 ]; then
    echo 'libc-room: no sources found' >&2
    exit 1
fi

strays=$(find "${rooms[@]}" -name '*.rs' ! -path '*/sys/*' ! -name sys.rs \
    -exec awk '
        { code = $0; sub(/\/\/.*/, "", code) }
        code ~ /(^|[^[:alnum:]_])libc *(::|;|,| as |})/ { print FILENAME ":" FNR ": " $0 }
    ' {} +)
if [ -n "$strays" ]; then
    printf '%s\n' "$strays" >&2
    echo 'libc-room: the lines above belong into sys/' >&2
    exit 1
fi
