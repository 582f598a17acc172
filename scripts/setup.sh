# Sourced by the other scripts: finds Python, installs missing Debian packages when it may, and makes the environment.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 2; }

# The system's own interpreter where there is one: it is the one that figures and tests are about.
find_python() {
  python=/usr/bin/python3
  [ -x "$python" ] || python=$(command -v python3) || fail "python3 is missing (apt-get install python3 python3-venv)"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$python is $("$python" --version), and kooi needs Python 3.10 or later"
}

# apt_install PACKAGE...: install what is missing; as an ordinary user, or without apt, say what is missing and fail.
apt_install() {
  local missing=() package
  command -v dpkg-query >/dev/null || return 0
  for package; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || fail "missing: ${missing[*]} (as root: apt-get install ${missing[*]})"
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2 && apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 </dev/null ||
    fail "apt-get install ${missing[*]} failed"
}

# Debian and Ubuntu ship Python without ensurepip; a venv then comes without pip.
need_venv() {
  "$python" -c 'import ensurepip, venv' 2>/dev/null && return 0
  command -v apt-get >/dev/null || fail "$python has no venv module with ensurepip"
  [ "$(id -u)" = 0 ] || fail "$python cannot make an environment (as root: apt-get install python3-venv)"
  apt_install python3-venv
  "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python still has no venv module with ensurepip"
}

# make_venv EXTRAS: make the environment once and bring it up to date with pyproject.toml and the sources.
make_venv() {
  find_python
  need_venv
  [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import pip' 2>/dev/null || {
    say "making ${venv##*/} with $("$python" --version)"
    "$python" -m venv --clear "$venv"
  }
  say "installing kooi[$1]"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$root[$1]" >&2 ||
    fail "pip could not install kooi[$1]"
}
