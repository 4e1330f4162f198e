#!/usr/bin/env bash
# The project speaks of itself alone: no package registry's host name, no path
# of a machine it was written on, no word about how it was written.
# Cargo.lock is left out: cargo itself writes the registry's address there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Each pattern has one letter in brackets, so that it does not match itself.
patterns=(
    'crates[.]io' 'static[.]rust-lang[.]org'
    'pypi[.]org' 'files[.]pythonhosted' 'registry[.]npmjs' 'proxy[.]golang'
    'deb[.]debian[.]org' 'archive[.]ubuntu[.]com'
    '(^|[^[:alnum:]_.])/[w]ork/' '/[f]arm/' '/tmp/[b]ash_jobs' '/tmp/[s]tudio'
    '/root/[.]' '(^|[^[:alnum:]_/])[s]hared/(DESIGN|KERNEL|STYLE|CASES|reference)'
    '[s]ub-?agent' "[d]eveloper.?s.? session"
)
expression=$(IFS='|'; echo "${patterns[*]}")

# -c: the check also works in a checkout that belongs to another user.
tracked() {
    if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git -c safe.directory='*' ls-files -z
    else
        find . \( -path ./target -o -path ./.git \) -prune -o -type f -print0
    fi
}

# grep ends with 1 where it finds nothing, and xargs turns that into 123.
found=$(tracked | grep -zvE '(^|/)Cargo\.lock$' \
    | xargs -0 -r grep -nHIiE -e "$expression" -- 2>/dev/null || true)
if [ -n "$found" ]; then
    printf '%s\n' "$found" >&2
    echo 'wording: take the words above out of the project' >&2
    exit 1
fi
