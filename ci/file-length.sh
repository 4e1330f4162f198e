#!/usr/bin/env bash
# Names Rust files past 500 lines. A warning only: such a file often holds a
# second concept that deserves a file of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find . \( -path ./target -o -path ./.git \) -prune -o -name '*.rs' -type f \
    -exec awk 'FNR > most[FILENAME] { most[FILENAME] = FNR }
        END { for (file in most) if (most[file] > 500)
            printf "warning: %s has %d lines\n", file, most[file] }' {} +
