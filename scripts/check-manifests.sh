#!/usr/bin/env bash
# Builds deploy/k8s with kubectl kustomize and validates what comes out against the schemas of Kubernetes, strictly:
# an unknown or misplaced field is an error. What a schema cannot see (selectors, ports, grace) is checked
# by tests/tests/manifests.rs. Without kubectl the files are validated as they stand. Needs no cluster.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The oldest that has a sleeping preStop on by default, and the one that made it stable.
kubernetes="1.30 1.34"
wanted=1.37.0
venv=.dev/venv-k8s

say() { printf 'check-manifests: %s\n' "$*" >&2; }

if [ "$("$venv/bin/python3" -c 'import importlib.metadata as m; print(m.version("kubernetes-validate"))' 2>/dev/null)" != "$wanted" ]; then
  say "installing kubernetes-validate $wanted into $venv"
  rm -rf "$venv"
  mkdir -p .dev
  python3 -m venv "$venv" || { say "python3 cannot make a venv (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
  "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check "kubernetes-validate==$wanted" >&2
fi

files=()
if command -v kubectl >/dev/null; then
  built=$(mktemp -d .dev/manifests.XXXXXX)
  trap 'rm -rf "$built"' EXIT
  for part in base overlays/dev; do
    files+=("$built/${part##*/}.yaml")
    kubectl kustomize "deploy/k8s/$part" >"$built/${part##*/}.yaml"
  done
else
  say "no kubectl: the kustomizations are not built, their files are validated as they stand"
  while IFS= read -r file; do
    files+=("$file")
  done <<FOUND
$(find deploy/k8s -name '*.yaml' ! -name kustomization.yaml)
FOUND
fi

for version in $kubernetes; do
  "$venv/bin/kubernetes-validate" --strict --quiet -k "$version" "${files[@]}"
  say "${#files[@]} files are valid for Kubernetes $version"
done
