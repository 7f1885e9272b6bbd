"""The version of this package. A module of its own: rooms that name it do not import the public door."""

__version__ = "0.2.0"
