"""The key `source.kafka.convert`: `strict`, `fit`, or what holds for which field. The rules are in `docs/conversions.md`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from landonce.config.part import Part

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
