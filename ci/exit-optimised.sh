#!/usr/bin/env bash
# The tests of exit::parallel once more, optimised: its last steps depend on
# what the compiler keeps (it drops an exit handler that does nothing).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo test --release -p mmzap --test exit_parallel --test exit_hazards
