# Sourced by the scripts beside it: makes the virtual environment .venv, once.
#
# Usage: source environment.sh; environment "[extras]"; then "$venv/bin/python" is ready.
# Set PYTHON to choose the interpreter, TCHUB_VENV to put the environment elsewhere.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${TCHUB_VENV:-$root/.venv}

say() { printf '%s\n' "tchub: $*" >&2; }

die() {
  say "error: $1"
  [ $# -lt 2 ] || say "remedy: $2"
  exit 1
}

# The first interpreter that is new enough.
find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
    [ "$candidate" != "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not Python 3.11 or newer"
  done
  die "no Python 3.11 or newer found" "install one, or set PYTHON to its path"
}

# What the environment is made from: in another place or with other pins it is installed again.
origin() {
  { printf '%s\n' "$root"; cat "$root/pyproject.toml" "$root/constraints.txt"; } | cksum
}

# Whether this origin, with these extras (none are a part of any), is installed already.
installed() {
  [ -e "$record" ] && [ "$(head -n 1 "$record")" = "$(origin)" ] &&
    { [ -z "$1" ] || grep -qxF -- "$1" "$record"; }
}

make_venv() {
  local python
  # An environment without pip (some tools make such) gets one; what does not even run is made anew.
  ! "$venv/bin/python" -m ensurepip --upgrade >/dev/null 2>&1 || return 0
  python=$(find_python) || exit 1
  say "making the environment $venv with $("$python" --version 2>&1)"
  "$python" -m venv --clear "$venv" || die "cannot make $venv" "install Python's venv module (Debian: python3-venv)"
}

environment() {
  local extras=${1:-} record=$venv/.tchub-installed
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
  ! installed "$extras" || return 0
  say "installing tchub$extras with the versions of constraints.txt (the first time takes some minutes)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint "$root/constraints.txt" --editable "$root$extras" ||
    die "the install failed; what pip says is above" "check the network, then run this again"
  if installed ""; then printf '%s\n' "$extras" >>"$record"; else printf '%s\n' "$(origin)" "$extras" >"$record"; fi
}
