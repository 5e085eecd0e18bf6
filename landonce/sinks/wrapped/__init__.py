"""Sinks that a user wraps: a function or a class that gets blocks, claimed in the ledger before they are pushed."""

from landonce.sinks.wrapped.block import PushedBlock
from landonce.sinks.wrapped.sink import WrappedSink, wrap

__all__ = ["PushedBlock", "WrappedSink", "wrap"]
