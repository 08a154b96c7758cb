"""Prints the address, the version and the API groups of the current Kubernetes cluster, as JSON.

And whether its JobSet is as new as needed: every user may read the API's description, unlike CustomResourceDefinitions.
"""

import json
from typing import Any

from kubernetes import client, config

from schedulers.jobset.policies import MESSAGE_PATTERNS
from schedulers.jobset.spec import GROUP, VERSION

TIMEOUT_SECONDS = (5, 10)

config.load_config()
settings = client.Configuration.get_default_copy()
settings.retries = False
api = client.ApiClient(settings)
version: Any = client.VersionApi(api).get_code(_request_timeout=TIMEOUT_SECONDS)
groups: Any = client.ApisApi(api).get_api_versions(_request_timeout=TIMEOUT_SECONDS)
names = [group.name for group in groups.groups]
described = ""
if GROUP in names:
    headers = {each["key"]: each["value"] for each in settings.auth_settings().values()}
    page = f"{settings.host}/openapi/v3/apis/{GROUP}/{VERSION}"
    described = str(api.rest_client.request("GET", page, headers=headers, _request_timeout=TIMEOUT_SECONDS).data)
found = {"host": settings.host, "version": version.git_version, "groups": names}
print(json.dumps(found | {"jobset_is_current": MESSAGE_PATTERNS in described}))
