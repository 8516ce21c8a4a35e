# What every script here starts with: stop on errors, work from the repository's root, and speak alike.
# Sourced by the scripts, with the variable `usage` set; not run by itself.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A progress line.
say() { printf '== %s\n' "$*"; }

# fail WHAT [ADVICE...]: what went wrong and, a line each, what to do about it.
fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  for advice in "$@"; do printf '  %s\n' "$advice" >&2; done
  exit 1
}

case "${1:-}" in
  -h | --help)
    printf '%s\n' "$usage"
    exit 0
    ;;
esac
