"""Prints the address, the version and the API groups of the current Kubernetes cluster, as JSON."""

import json
from typing import Any

from kubernetes import client, config

TIMEOUT_SECONDS = (5, 10)

config.load_config()
settings = client.Configuration.get_default_copy()
settings.retries = False
api = client.ApiClient(settings)
version: Any = client.VersionApi(api).get_code(_request_timeout=TIMEOUT_SECONDS)
groups: Any = client.ApisApi(api).get_api_versions(_request_timeout=TIMEOUT_SECONDS)
names = [group.name for group in groups.groups]
print(json.dumps({"host": settings.host, "version": version.git_version, "groups": names}))
