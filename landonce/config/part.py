"""What sections of a pipeline file consist of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, urlencode

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr

from landonce.config import secrets


def _known_secret(value: SecretStr) -> SecretStr:
    secrets.remember_url(value.get_secret_value())
    return value


SecretUrl = Annotated[SecretStr, AfterValidator(_known_secret)]


_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "ssl_ca", "ssl_cert", "ssl_key")
"""What the drivers of PostgreSQL and MySQL call files of certificates in a URL."""


def url_beside(url: str, folder: Path) -> str:
    """The URL of a database, with files of certificates taken from this folder if their paths are relative."""
    address, mark, query = url.partition("?")
    named = parse_qsl(query, keep_blank_values=True)
    moved = [
        (name, str(folder / value) if name in _FILES and value and value != "system" else value)
        for name, value in named
    ]
    return f"{address}{mark}{urlencode(moved)}" if moved != named else url


def secret_beside(url: SecretStr | None, folder: Path) -> SecretStr | None:
    return SecretStr(url_beside(url.get_secret_value(), folder)) if url is not None else None


class Part(BaseModel):
    """A section of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
