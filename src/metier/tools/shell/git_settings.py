"""Settings of git that hold for every command of the shell, because a repository's own may name programs. Data only."""

_SETTINGS = (
    # A folder of a clone can look like a bare repository: git must not take it for one.
    ("safe.bareRepository", "explicit"),
    # `git status`, `git diff`, `git describe` and `git ls-files` would start this program.
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    # `ext::` addresses are commands.
    ("protocol.ext.allow", "never"),
    # A signature is checked by a program that the repository names.
    ("log.showSignature", "false"),
    # `dirty`: git would otherwise run in each submodule, by its configuration and without the settings here.
    ("diff.ignoreSubmodules", "dirty"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
)
"""They go before what files of a repository, a user or a system say; only `-c` on the command line goes before them."""


def build_git_settings() -> dict[str, str]:
    """As variables of the environment."""
    variables = {"GIT_CONFIG_COUNT": str(len(_SETTINGS))}
    for number, (name, value) in enumerate(_SETTINGS):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables
