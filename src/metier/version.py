"""The version of this package, without importing the public API."""

__version__ = "0.2.0"
