"""The schemas that a cluster checks objects with: CustomResourceDefinitions, and Kubernetes' own for pods."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

FOLDER = Path(__file__).with_name("data") / "crds"
KUBERNETES = "1.37"


@cache
def definitions() -> dict[tuple[str, str], dict]:
    """The schema of each custom resource, by its apiVersion and kind."""
    found = {}
    for file in sorted(FOLDER.glob("*.json")):
        spec = json.loads(file.read_text())["spec"]
        for version in spec["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def strict(schema: dict) -> dict:
    """An OpenAPI schema as a JSON schema that refuses unknown fields, as a server does when it validates strictly."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    result = {key: value for key, value in schema.items() if not key.startswith("x-") and key != "format"}
    if "properties" in schema:
        result["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        result.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            result[below] = strict(schema[below])
    return result


def validate(resource: dict) -> None:
    """Checks a custom resource; raises ValueError with what is wrong."""
    schema = definitions()[resource["apiVersion"], resource["kind"]]
    errors = jsonschema.Draft202012Validator(schema).iter_errors(resource)
    for error in errors:
        raise ValueError(f"{error.json_path}: {error.message}")


def validate_pod(template: dict) -> None:
    """Checks a pod template against Kubernetes' own schema; raises ValueError with what is wrong."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"} | template["metadata"],
        "spec": template["spec"],
    }
    try:
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(error.message) from error


def without_descriptions(part: Any) -> Any:
    """Returns a definition without the nine tenths of it that no check reads."""
    if isinstance(part, list):
        return [without_descriptions(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key != "description" or not isinstance(value, str)}
    return {key: without_descriptions(value) for key, value in kept.items()}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for crd in yaml.load_all(Path(name).read_text(), Loader=yaml.CSafeLoader):
            file = FOLDER / f"{crd['spec']['group']}_{crd['spec']['names']['plural']}.json"
            file.write_text(json.dumps(without_descriptions(crd), separators=(",", ":")) + "\n")
