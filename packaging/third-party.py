#!/usr/bin/env python3
"""Prints the licences of every crate that is compiled into what RADIC installs: packaging/third-party.py >THIRD-PARTY

Their texts are taken from the crates' own sources, as Cargo has them; a crate without one is named with what its Cargo.toml says.
"""
import json
import pathlib
import subprocess
import sys

SHIPPED = ["radic-tools", "radicd", "radic-preload", "radic-pmi", "radic-pmix", "radic-ckpt-preload"]
TARGET = "x86_64-unknown-linux-gnu"
NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")


def compiled(metadata):
    """The ids of all packages that the shipped ones are made of: no build scripts' nor tests'."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    wanted = [package["id"] for package in metadata["packages"] if package["name"] in SHIPPED]
    if len(wanted) != len(SHIPPED):
        sys.exit(f"third-party: of {SHIPPED} only {len(wanted)} are in this workspace")
    seen = set()
    while wanted:
        node = wanted.pop()
        if node not in seen:
            seen.add(node)
            wanted += [d["pkg"] for d in nodes[node]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]
    return seen


def texts(folder):
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.lower().startswith(NAMES):
            yield path.name, path.read_text(encoding="utf-8", errors="replace").strip()


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--filter-platform", TARGET, "--locked"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    ids = compiled(metadata)
    packages = [p for p in metadata["packages"] if p["id"] in ids and p["source"] is not None]
    packages.sort(key=lambda p: (p["name"], p["version"]))
    print("RADIC's programs and libraries hold code of these crates:\n")
    for package in packages:
        print(f"  {package['name']} {package['version']}: {package['license'] or 'see its text below'}")
    groups = {}
    for package in packages:
        for name, text in texts(pathlib.Path(package["manifest_path"]).parent):
            groups.setdefault(text, []).append(f"{package['name']} {package['version']} ({name})")
    for text, owners in sorted(groups.items(), key=lambda group: group[1]):
        print(f"\n{'=' * 78}\n{chr(10).join(owners)}\n{'-' * 78}\n{text}")


if __name__ == "__main__":
    main()
