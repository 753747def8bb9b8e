#!/usr/bin/env python3
"""Checks the manifests in this folder, without a cluster and without a network: check.py

Base and overlays are put together, validated against the schemas of Kubernetes (strictly: a field that no schema knows is an error), and compared with each other: names,
selectors, numbers, times and sizes that must fit. `kubectl kustomize` or `kustomize`, if there is one, must put them together in the same way. Faults that are made on purpose
must be found. Needs PyYAML and kubernetes-validate, which brings the schemas; scripts/deps.sh installs both.

What this cannot show is what a cluster makes of them: docs/kubernetes.md.
"""

import copy
import json
import pathlib
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions

HERE = pathlib.Path(__file__).resolve().parent
# Each with the first Kubernetes that has its fields.
TARGETS = {"base": "1.25", "overlays/example": "1.25", "overlays/ids": "1.30"}
# By what the entries of these lists are told apart when a patch is merged.
KEYS = {"containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


class Wrong(Exception):
    """What is wrong, and what to do."""


def need(holds, text):
    if not holds:
        raise Wrong(text)


# Putting together: those parts of kustomize that are used here, and an error for every other one.


def merge(old, patch, name=None):
    """A strategic merge."""
    if isinstance(old, dict) and isinstance(patch, dict):
        merged = dict(old)
        for field, value in patch.items():
            need(value is not None, f"{field} is null in a patch: check.py does not remove fields")
            merged[field] = merge(old[field], value, field) if field in old else value
        return merged
    if isinstance(old, list) and isinstance(patch, list) and name in KEYS:
        key = KEYS[name]
        merged = {entry[key]: entry for entry in old}
        for entry in patch:
            merged[entry[key]] = merge(merged[entry[key]], entry) if entry[key] in merged else entry
        return list(merged.values())
    return patch


def generate(folder, entry, options, there):
    """A ConfigMap, or additions to one that is there."""
    data = dict(literal.split("=", 1) for literal in entry.get("literals", []))
    data.update({name: (folder / name).read_text() for name in entry.get("files", [])})
    unknown = set(entry) - {"name", "literals", "files", "behavior"}
    need(not unknown, f"{folder}: check.py does not know {unknown} of a configMapGenerator")
    if entry.get("behavior") == "merge":
        there["data"].update(data)
        return None
    need("behavior" not in entry, f"{folder}: check.py does not know the behavior {entry.get('behavior')}")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": entry["name"], "labels": dict(options.get("labels", {}))}, "data": data}


def build(folder):
    """The documents of a kustomization."""
    what = yaml.safe_load((folder / "kustomization.yaml").read_text())
    known = {"apiVersion", "kind", "namespace", "resources", "generatorOptions", "configMapGenerator", "patches", "images"}
    need(set(what) <= known, f"{folder}: check.py does not know {set(what) - known}")
    options = what.get("generatorOptions", {})
    generators = what.get("configMapGenerator", [])
    need(not generators or options.get("disableNameSuffixHash") is True, f"{folder}: disableNameSuffixHash must be true, for the names are used as they are")
    documents = []
    for resource in what["resources"]:
        path = folder / resource
        documents += build(path.resolve()) if path.is_dir() else [one for one in yaml.safe_load_all(path.read_text()) if one]
    for entry in generators:
        there = [one for one in documents if one["kind"] == "ConfigMap" and one["metadata"]["name"] == entry["name"]]
        made = generate(folder, entry, options, there[0] if there else None)
        documents += [made] if made else []
    for entry in what.get("patches", []):
        need(set(entry) == {"path"}, f"{folder}: check.py knows patches with a path only")
        patch = yaml.safe_load((folder / entry["path"]).read_text())
        place = [at for at, one in enumerate(documents) if named(one) == named(patch)]
        need(len(place) == 1, f"{folder}: there is no {named(patch)} for {entry['path']}")
        documents[place[0]] = merge(documents[place[0]], patch)
    for one in documents:
        if "namespace" in what:
            one["metadata"]["namespace"] = what["namespace"]
        for container in pod(one).get("containers", []):
            for image in what.get("images", []):
                if re.split("[:@]", container["image"])[0] == image["name"]:
                    container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    return documents


def named(document):
    return document["kind"], document["metadata"]["name"]


def pod(document):
    return document.get("spec", {}).get("template", {}).get("spec", {})


def ordered(value):
    """The same, whatever the order of entries that are told apart by a name."""
    if isinstance(value, dict):
        return {name: ordered(of) for name, of in value.items()}
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        return sorted((ordered(entry) for entry in value), key=lambda entry: json.dumps(entry, sort_keys=True))
    return value


def compare(target, documents):
    """With what kustomize makes of it, if there is one; its name."""
    tools = [("kustomize", ["build"]), ("kubectl", ["kustomize"])]
    for tool, words in tools:
        if shutil.which(tool):
            made = subprocess.run([tool, *words, str(HERE / target)], capture_output=True, text=True)
            need(made.returncode == 0, f"{target}: {tool}: {made.stderr}")
            theirs = sorted((ordered(one) for one in yaml.safe_load_all(made.stdout)), key=named)
            ours = sorted((ordered(one) for one in documents), key=named)
            need(ours == theirs, f"{target}: {tool} makes something else of it than check.py")
            return tool
    return None


# What must hold.


def validate(document, version):
    try:
        kubernetes_validate.validate(copy.deepcopy(document), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Wrong(f"{named(document)}: {'.'.join(map(str, error.path))}: {error.message} (Kubernetes {version})") from None
    except kubernetes_validate.SchemaNotFoundError as error:
        raise Wrong(f"{named(document)}: {error.message}") from None


def size(text):
    number, unit = re.fullmatch(r"(\d+)(\D*)", str(text)).groups()
    return int(number) * UNITS[unit]


def fit(documents):
    """That the documents fit each other, and the programs that they start."""
    of = {named(one): one for one in documents}
    need(len(of) == len(documents), "two documents have one name")
    need(not any(kind == "Secret" for kind, _ in of), "the key belongs to its user: no Secret stands here")
    workload = of["StatefulSet", "radic"]["spec"]
    spec, labels = pod(of["StatefulSet", "radic"]), workload["template"]["metadata"]["labels"]
    container = {entry["name"]: entry for entry in spec["containers"]}["radicd"]
    settings, scripts = of["ConfigMap", "radic"]["data"], of["ConfigMap", "radic-scripts"]["data"]

    service = of.get(("Service", workload["serviceName"]), {}).get("spec", {})
    need(service.get("clusterIP") == "None" and service.get("publishNotReadyAddresses") is True, "the pods' Service must be headless and name pods that are not ready")
    selectors = {
        "StatefulSet": workload["selector"]["matchLabels"],
        "Service": service["selector"],
        "PodDisruptionBudget": of["PodDisruptionBudget", "radic"]["spec"]["selector"]["matchLabels"],
        "NetworkPolicy": of["NetworkPolicy", "radic"]["spec"]["podSelector"]["matchLabels"],
    }
    for kind, selector in selectors.items():
        need(selector.items() <= labels.items(), f"the selector of the {kind} does not fit the pods' labels, {labels}")
    need(of["PodDisruptionBudget", "radic"]["spec"]["maxUnavailable"] == 1, "one pod at a time may be evicted")

    replicas = workload["replicas"]
    due = ",".join(f"radic-{number}.{workload['serviceName']}" for number in range(replicas))
    need(settings["RADIC_JOIN"] == due, f"RADIC_JOIN must name all {replicas} pods: {due}")
    need(1 <= int(settings["SPARES_FROM"]) <= replicas, "SPARES_FROM: at first at least one pod is a node")
    need(workload["podManagementPolicy"] == "Parallel" and workload["updateStrategy"]["type"] == "OnDelete", "pods begin together, and are not renewed by themselves")

    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    need(hook[0] == "timeout", "the hook needs a limit")
    times = int(hook[1]) + int(settings["RADIC_GRACE"])
    need(times < spec["terminationGracePeriodSeconds"], f"terminationGracePeriodSeconds must be more than {times}: the hook and RADIC_GRACE")

    volumes = {entry["name"]: entry for entry in spec["volumes"]}
    mounts = {entry["name"]: entry["mountPath"] for entry in container["volumeMounts"]}
    need(set(volumes) == set(mounts), f"volumes and mounts differ: {set(volumes) ^ set(mounts)}")
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    for variable, volume in {"RADIC_CLUSTER": "run", "RADIC_STORE": "store", "POD_KEY": "key"}.items():
        need(variables[variable].startswith(mounts[volume] + "/"), f"{variable} must be below {mounts[volume]}")
    need(mounts["shm"] == "/dev/shm", "MPI libraries use /dev/shm")
    need([entry["configMapRef"]["name"] for entry in container["envFrom"]] == ["radic"], "the settings are in the ConfigMap radic")
    commands = [container["command"], hook, container["readinessProbe"]["exec"]["command"], container["livenessProbe"]["exec"]["command"]]
    for script in (word for command in commands for word in command if word.endswith(".sh")):
        need(script.startswith(mounts["scripts"] + "/") and script.rsplit("/", 1)[1] in scripts, f"there is no {script}")
    need(volumes["scripts"]["configMap"]["name"] == "radic-scripts" and volumes["key"]["secret"]["secretName"] == "radic-key", "scripts and key have their names")

    limits = container["resources"]["limits"]
    in_memory = sum(size(entry["emptyDir"]["sizeLimit"]) for entry in volumes.values() if entry.get("emptyDir", {}).get("medium") == "Memory")
    need(in_memory < size(limits["memory"]), "what is in memory counts to the limit of memory")
    need(size(volumes["store"]["emptyDir"]["sizeLimit"]) <= size(limits["ephemeral-storage"]), "the store counts to the limit of ephemeral-storage")
    need("cpu" not in limits, "what is throttled may be taken for dead")
    need("cpu" in container["resources"]["requests"], "the slots of a node are the processors that it asks for")

    for name, text in scripts.items():
        checked = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True)
        need(checked.returncode == 0, f"{name}: {checked.stderr}")


def restricted(documents):
    """What the Pod Security Standard of that name wants of such pods."""
    spec = next(pod(one) for one in documents if one["kind"] == "StatefulSet")
    own = spec["securityContext"]
    need(own["runAsNonRoot"] is True and own["runAsUser"] != 0 and own["seccompProfile"]["type"] == "RuntimeDefault", "not restricted: the pod")
    for container in spec["containers"]:
        of = container["securityContext"]
        need(of["allowPrivilegeEscalation"] is False and of["capabilities"] == {"drop": ["ALL"]} and "procMount" not in of, "not restricted: a container")
    allowed = {"emptyDir", "configMap", "secret", "persistentVolumeClaim"}
    need(all(set(entry) - {"name"} <= allowed for entry in spec["volumes"]), "not restricted: a volume")


def faults(documents, newest):
    """Each of these must be found."""

    def change(kind, name, path, value):
        changed = copy.deepcopy(documents)
        at = next(one for one in changed if named(one) == (kind, name))
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        return changed

    spec, container = ("spec", "template", "spec"), ("spec", "template", "spec", "containers", 0)
    made = [
        change("StatefulSet", "radic", ("spec", "replica"), 5),
        change("StatefulSet", "radic", ("spec", "replicas"), "5"),
        change("StatefulSet", "radic", (*container, "lifecycle", "preStop", "command"), ["true"]),
        change("PodDisruptionBudget", "radic", ("apiVersion",), "policy/v1beta1"),
        change("StatefulSet", "radic", ("spec", "replicas"), 6),
        change("StatefulSet", "radic", ("spec", "serviceName"), "other"),
        change("StatefulSet", "radic", (*spec, "terminationGracePeriodSeconds"), 90),
        change("StatefulSet", "radic", (*container, "command"), ["sh", "/etc/radic-pod/begin.sh"]),
        change("StatefulSet", "radic", (*container, "volumeMounts", 0, "name"), "ran"),
        change("StatefulSet", "radic", (*container, "resources", "limits", "memory"), "1Gi"),
        change("PodDisruptionBudget", "radic", ("spec", "selector", "matchLabels"), {"app": "radic"}),
        change("ConfigMap", "radic", ("data", "RADIC_JOIN"), "radic-0.radic"),
        change("ConfigMap", "radic-scripts", ("data", "ready.sh"), "if true"),
    ]
    for number, changed in enumerate(made):
        try:
            for one in changed:
                validate(one, newest)
            fit(changed)
        except Wrong:
            continue
        raise Wrong(f"check.py does not find fault {number}")
    return len(made)


def main():
    newest, tools = all_versions()[-1], set()
    for path in HERE.rglob("*"):
        need(not path.is_file() or path == pathlib.Path(__file__).resolve() or b"radic cluster key v" not in path.read_bytes(), f"{path} holds a key")
    for target, oldest in TARGETS.items():
        documents = build(HERE / target)
        for version in (oldest, newest):
            for one in documents:
                validate(one, version)
        fit(documents)
        if target != "overlays/ids":
            restricted(documents)
        tools.add(compare(target, documents))
        print(f"{target}: {len(documents)} documents fit Kubernetes {oldest} and {newest}")
    print(f"base: {faults(build(HERE / 'base'), newest)} faults made on purpose are found")
    print("put together by check.py alone: no kustomize here" if tools == {None} else f"the same by {', '.join(sorted(tools))}")


if __name__ == "__main__":
    try:
        main()
    except Wrong as wrong:
        sys.exit(f"check.py: {wrong}")
