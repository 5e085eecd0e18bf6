"""A section of a pipeline file, and what in it is a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr

from landonce.config import secrets

_SECRET_PROPERTY = re.compile(r"password|secret|token|credential|key|auth|sas|header|connection-string", re.IGNORECASE)
_ADDRESS = re.compile(r"(https?://[^@]*|true|false)$", re.IGNORECASE)
"""What is no secret, whatever the property is called: an address without a password, a word."""


_URL_USER = re.compile(r"(?<=://)[^/@]*@")


def _known_secret(value: SecretStr) -> SecretStr:
    secrets.remember_url(value.get_secret_value())
    return value


SecretUrl = Annotated[SecretStr, AfterValidator(_known_secret)]


class Part(BaseModel):
    """A section of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def remember_secrets(properties: Mapping[str, Any], above: str = "") -> None:
    """Of properties whose name is like a secret's, or that lie below such a one."""
    for name, value in properties.items():
        path = f"{above}.{name}"
        if isinstance(value, list):
            raise ValueError(f"{name}: a catalog property is one value, or several with names of their own")
        if isinstance(value, Mapping):
            remember_secrets(value, path)
        elif isinstance(value, str) and _SECRET_PROPERTY.search(path) and not _ADDRESS.match(value):
            for part in (value, *value.split(":")[1:], *value.split()[1:]):
                secrets.remember(part)


def without_secrets(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What says the same when a password is changed: no property whose name is like a secret's, no user and password in a URL."""
    return {
        name: without_secrets(value)
        if isinstance(value, Mapping)
        else _URL_USER.sub("", value)
        if isinstance(value, str)
        else value
        for name, value in properties.items()
        if not _SECRET_PROPERTY.search(name)
    }


def by_place(value: Any) -> Any:
    """Options of a plug-in may hold lists: each value by its place in it, so that secrets in them are found too."""
    if isinstance(value, list):
        value = {str(place): each for place, each in enumerate(value)}
    return {name: by_place(each) for name, each in value.items()} if isinstance(value, Mapping) else value
