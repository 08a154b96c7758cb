"""The schemas that a cluster checks objects with: CustomResourceDefinitions, and Kubernetes' own for pods."""

import os
from functools import cache
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

FOLDER = Path(os.environ.get("TORCHX_RECSYS_CRDS", Path(__file__).parents[3] / "shared/data/crds"))
MISSING = f"no CustomResourceDefinitions in {FOLDER}: set TORCHX_RECSYS_CRDS to a directory that has them"
KUBERNETES = "1.37"


def available() -> bool:
    """Whether the definitions are there."""
    return FOLDER.is_dir()


@cache
def definitions() -> dict[tuple[str, str], dict]:
    """The schema of each custom resource, by its apiVersion and kind."""
    found = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        for crd in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
            for version in crd["spec"]["versions"]:
                key = f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                found[key] = schema
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
