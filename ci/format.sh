#!/usr/bin/env bash
# All Rust sources are formatted by rustfmt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo fmt --all --check
