"""The keys of `source.kafka` that have sections of their own: `format`, `convert` and `start`.

Each format has a section here, and a module in `landonce.read.formats`. The rules of `convert` are in `docs/conversions.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, model_validator

from landonce.config import secrets
from landonce.config.part import Part, SecretUrl


class JsonFormat(Part):
    """One JSON object per record."""

    framing: Literal["none", "confluent"] = "none"
    """`confluent`: five bytes, with the id of a schema, stand before the object."""


class CsvFormat(Part):
    """One line per record."""

    columns: tuple[str, ...] = Field(min_length=1)
    """The names of the values, in their order."""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    quote: str = Field(default='"', min_length=1, max_length=1)
    null: str = ""
    """What stands for a null, if it is not quoted."""

    @model_validator(mode="after")
    def _sound(self) -> CsvFormat:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("columns: a name occurs twice")
        for name, given in (("delimiter", self.delimiter), ("quote", self.quote)):
            if given != "\t" and not (given.isascii() and given.isprintable() and not given.isalnum()):
                raise ValueError(f"{name}: must be an ASCII character that is no letter and no digit")
        if self.delimiter == self.quote:
            raise ValueError("delimiter and quote must differ")
        return self


class TsvFormat(CsvFormat):
    """The same, with tabs."""

    delimiter: str = Field(default="\t", min_length=1, max_length=1)


class SchemaRegistry(Part):
    """A registry that speaks Confluent's protocol."""

    url: SecretUrl
    user: str = ""
    password: SecretStr = SecretStr("")
    ca_cert: Path | None = None
    """The authority that signed the server's certificate. None: one that the system trusts."""
    client_cert: Path | None = None
    client_key: Path | None = None
    """None: the key is in the file of the certificate."""

    @model_validator(mode="after")
    def _sound(self) -> SchemaRegistry:
        secrets.remember(self.password.get_secret_value())
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("client_key: its certificate is missing; name it in client_cert")
        return self


class ReaderSchema(Part):
    """A file, or a version of a subject of the registry."""

    file: Path | None = None
    subject: str | None = None
    version: int | None = Field(default=None, ge=1)
    """None: the newest."""

    @model_validator(mode="before")
    @classmethod
    def _file_alone(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, (str, Path)) else value

    @model_validator(mode="after")
    def _sound(self) -> ReaderSchema:
        if (self.file is None) == (self.subject is None) or (self.version is not None and self.subject is None):
            raise ValueError("name a file, or a `subject` of the registry and its `version`")
        return self


class AvroFormat(Part):
    """One Avro body per record."""

    schema_: Path | tuple[Path, ...] = Field(default=(), alias="schema")
    """The file of the schema that records are written with; several, if records name theirs by its fingerprint."""
    registry: SchemaRegistry | None = None
    """Records name their schema by its id there."""
    framing: Literal["none", "single-object"] = "none"
    """Without a registry: the body alone, or C3 01 and the schema's fingerprint before it."""
    reader: ReaderSchema | None = None
    """The schema that all records are resolved to, by Avro's rules: a file, or in the registry."""

    @property
    def files(self) -> tuple[Path, ...]:
        return self.schema_ if isinstance(self.schema_, tuple) else (self.schema_,)

    @model_validator(mode="after")
    def _sound(self) -> AvroFormat:
        if bool(self.files) == (self.registry is not None):
            raise ValueError("name a `schema` file, or a `registry`")
        if self.registry is not None and self.framing != "none":
            raise ValueError("framing: records whose schema is in a registry have Confluent's")
        if self.reader is not None and self.reader.subject is not None and self.registry is None:
            raise ValueError("reader: a subject is in a `registry`; without one, name a file")
        if len(self.files) > 1 and self.framing == "none":
            raise ValueError("schema: records name one of several schemas with `framing: single-object`")
        return self


class ProtobufFormat(Part):
    """One Protobuf message per record."""

    schema_: Path | None = Field(default=None, alias="schema")
    """A `.proto` file, or a descriptor set."""
    registry: SchemaRegistry | None = None
    """Records name their schema by its id there, and their message by its place in the schema."""
    message: str | None = None
    """The full name of the message; with a registry, the only one that lands."""

    @model_validator(mode="after")
    def _sound(self) -> ProtobufFormat:
        if (self.schema_ is None) == (self.registry is None):
            raise ValueError("name a `schema` file, or a `registry`")
        return self


class NoOptions(Part):
    """A format without options."""


class RecordFormat(Part):
    """One of the formats, by its name."""

    json_: JsonFormat | None = Field(default=None, alias="json")
    csv: CsvFormat | None = None
    tsv: TsvFormat | None = None
    avro: AvroFormat | None = None
    protobuf: ProtobufFormat | None = None
    raw: NoOptions | None = None
    """Bytes that are not decoded: the column `_value`."""
    string: NoOptions | None = None
    """Text: the column `_value`."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {value: {}} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one(self) -> RecordFormat:
        if len(self.named) != 1:
            raise ValueError(f"name one format: {', '.join(sorted(names()))}")
        return self

    @property
    def is_plain(self) -> bool:
        """Whether records have no fields."""
        return self.raw is not None or self.string is not None

    @property
    def has_schema(self) -> bool:
        """Whether records have a schema that says more than their JSON."""
        return self.avro is not None or self.protobuf is not None

    @property
    def shows_fields(self) -> bool:
        """Whether a record, or its schema, shows which fields it has."""
        return self.json_ is not None or self.has_schema

    @property
    def named(self) -> dict[str, Part]:
        """The format that the file names."""
        return {name: each for name, each in self if each is not None}


def beside(part: Part, folder: Path) -> Part:
    """The same, with relative paths taken from this folder."""

    def moved(value: Any) -> Any:
        if isinstance(value, Path):
            return folder / value
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        return beside(value, folder) if isinstance(value, Part) else value

    return part.model_copy(update={name: moved(value) for name, value in part})


def names() -> tuple[str, ...]:
    return tuple(each.alias or name for name, each in RecordFormat.model_fields.items())


_MODES = ("strict", "fit")


class Conversion(Part):
    """Of one field and everything inside it: `strict`, `fit`, or the options of `fit`."""

    mode: Literal["strict", "fit"] = "fit"
    epoch: Literal["s", "ms", "us", "ns", "d"] | None = None
    """What a number counts where the column is a time. None: its size tells."""
    empty: Literal["keep"] | None = "keep"
    """What an empty string becomes: null, or what the text "" becomes."""

    @model_validator(mode="before")
    @classmethod
    def _mode_alone(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in _MODES:
                raise ValueError("must be strict, fit, or options of fit, such as {epoch: ms}")
            return {"mode": value}
        return value

    @model_validator(mode="after")
    def _sound(self) -> Conversion:
        if self.mode == "strict" and (self.epoch is not None or self.empty is None):
            raise ValueError("strict has no options")
        return self


class Convert(Part):
    """What holds for every field, and for fields by their path: `price`, `items[].price`."""

    default: Conversion = Conversion(mode="strict")
    fields_: dict[str, Conversion] = Field(default_factory=dict, alias="fields")

    @model_validator(mode="before")
    @classmethod
    def _mode_alone(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in _MODES:
                raise ValueError("must be strict, fit, or say which fields: {fields: {price: fit}}")
            return {"default": value}
        return value

    @property
    def fits(self) -> bool:
        """Whether any field is not strict."""
        return any(each.mode == "fit" for each in (self.default, *self.fields_.values()))


_FORMS = "earliest, latest, {timestamp: 2026-11-01T00:00:00Z}, {offsets: {topic: {0: 100}}} or {group: name}"


class KafkaStart(Part):
    """Where a pipeline without a position begins: at an edge of the topics, or at one of the three places."""

    edge: Literal["earliest", "latest"] = "earliest"
    """If no place is named. In a file it stands alone."""
    timestamp: datetime | None = None
    offsets: dict[str, dict[int, int]] | None = None
    group: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _one_form(cls, value: Any) -> Any:
        if isinstance(value, str) and value in ("earliest", "latest"):
            return {"edge": value}
        if isinstance(value, Mapping) and (not value or set(value) in ({"timestamp"}, {"offsets"}, {"group"})):
            return value
        raise ValueError(f"must be {_FORMS}")

    @model_validator(mode="after")
    def _sound(self) -> KafkaStart:
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ValueError("timestamp: has no time zone; write for example 2026-11-01T00:00:00Z")
        for each in (self.offsets or {}).values():
            if any(number < 0 or at < 0 for number, at in each.items()):
                raise ValueError("offsets: partitions and offsets are 0 or more")
        return self
