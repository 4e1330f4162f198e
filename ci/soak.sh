#!/usr/bin/env bash
# The long runs, half an hour: lazily freed blocks under pressure for ten
# minutes, and a hundred million pins of volatile memory against reclaim, most of
# them on one CPU, where nobody waits for the others' TLBs, the rest on all.
# As root, for the control group; not part of .ci/run.
set -euo pipefail
cd "$(dirname "$0")/.."

export MMZAP_TEST_HUNG_SECONDS=7200
MMZAP_LAZY_SECONDS=${MMZAP_LAZY_SECONDS:-600} \
    cargo test --release --test lazy -- blocks_keep_every_word
cycles=${MMZAP_VOLATILE_CYCLES:-100000000}
MMZAP_VOLATILE_CYCLES=$((cycles / 10 * 9)) \
    taskset -c 0 cargo test --release --test volatile -- threads_and_reclaim
MMZAP_VOLATILE_CYCLES=$((cycles / 10)) \
    cargo test --release --test volatile -- threads_and_reclaim
