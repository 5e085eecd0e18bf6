"""The pipeline file: YAML, loaded safely, checked whole before anything starts."""

from landonce.config.load import load
from landonce.config.model import Pipeline

__all__ = ["Pipeline", "load"]
