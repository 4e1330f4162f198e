#!/usr/bin/env bash
# Runs all tests, doctests included, and ends with one line that adds up the
# results of all test binaries. Arguments go to `cargo test`. The exit status
# is cargo's, or 1 where cargo succeeds without having run a test binary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
cargo test --workspace --all-features "$@" 2>&1 | tee "$log" || status=$?

# A result line reads "test result: ok. 3 passed; 0 failed; 1 ignored; ...".
awk '
    /^test result: / {
        binaries++
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed;?$/)  passed  += $(i - 1)
            if ($i ~ /^failed;?$/)  failed  += $(i - 1)
            if ($i ~ /^ignored;?$/) skipped += $(i - 1)
        }
    }
    END {
        printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
        exit binaries == 0
    }
' "$log" || [ "$status" -ne 0 ] || status=1
exit "$status"
