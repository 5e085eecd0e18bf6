"""The key `source.kafka.format`: a name, or a name with its options. Each format has a section here, and a module in `landonce.read.formats`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from landonce.config.part import Part


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
        if self.delimiter == self.quote or {self.delimiter, self.quote} & set("\r\n"):
            raise ValueError("delimiter and quote must differ, and must not be line breaks")
        return self


class TsvFormat(CsvFormat):
    """The same, with tabs."""

    delimiter: str = Field(default="\t", min_length=1, max_length=1)


class NoOptions(Part):
    """A format without options."""


class RecordFormat(Part):
    """One of the formats, by its name."""

    json_: JsonFormat | None = Field(default=None, alias="json")
    csv: CsvFormat | None = None
    tsv: TsvFormat | None = None
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
    def is_plain_json(self) -> bool:
        return self.json_ is not None and self.json_.framing == "none"

    @property
    def named(self) -> dict[str, Part]:
        """The format that the file names."""
        return {name: each for name, each in self if each is not None}


def names() -> tuple[str, ...]:
    return tuple(each.alias or name for name, each in RecordFormat.model_fields.items())
