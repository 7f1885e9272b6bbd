"""How freely a run acts where no rule speaks."""

from typing import Literal, get_args

type Profile = Literal["permissive", "guarded", "strict"]

PROFILES: tuple[Profile, ...] = get_args(Profile.__value__)
"""The loosest first."""
