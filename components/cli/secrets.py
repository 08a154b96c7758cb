"""Hides credentials in what a dry run prints."""

import re
from dataclasses import replace

from torchx.specs import AppDef, Role

from trainer.core.secrets import without_secrets

CREDENTIAL = re.compile("token|secret|passw|credential|signature|auth|key", re.IGNORECASE)


def without_credentials(app: AppDef) -> AppDef:
    """Returns an app whose variables named like a credential are `***`, and so are the secrets of URLs."""
    return replace(app, roles=[_hidden(role) for role in app.roles])


def _hidden(role: Role) -> Role:
    env = {name: "***" if CREDENTIAL.search(name) else without_secrets(value) for name, value in role.env.items()}
    return replace(role, env=env, args=[without_secrets(argument) for argument in role.args])
