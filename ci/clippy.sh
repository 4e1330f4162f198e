#!/usr/bin/env bash
# No warning of rustc or clippy: everything with all features, and the
# library without any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo clippy --workspace --all-targets --all-features -- -D warnings
cargo clippy --package mmzap --lib --no-default-features -- -D warnings
