"""What sections of a pipeline file consist of."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr

from landonce.config import secrets


def _known_secret(value: SecretStr) -> SecretStr:
    secrets.remember_url(value.get_secret_value())
    return value


SecretUrl = Annotated[SecretStr, AfterValidator(_known_secret)]


class Part(BaseModel):
    """A section of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
