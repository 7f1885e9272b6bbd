"""What encloses the code of skills that a command runs outside of a run."""

import os

from metier.cli.shared.context import current_directory, home_folder
from metier.cli.skill.catalog import SkillPlaces
from metier.runtime.confinement import open_confinement
from metier.runtime.host import Host
from metier.tools.process.sandbox.confinement import Confinement


async def open_skill_confinement(places: SkillPlaces) -> Confinement:
    """What encloses the code of skills here, as in a run. Raises `SandboxUnavailable`."""
    host = Host(
        settings=places.settings,
        workspace=current_directory(),
        home=home_folder(),
        environ=dict(os.environ),
        trust=places.trust,
    )
    return await open_confinement(host)
