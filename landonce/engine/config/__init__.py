"""The pipeline file: YAML, loaded safely, checked whole before anything starts."""

from landonce.engine.config.load import load
from landonce.engine.config.model import Pipeline

__all__ = ["Pipeline", "load"]
