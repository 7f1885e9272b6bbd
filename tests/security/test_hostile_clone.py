"""Hostile agent files in a cloned folder."""

import os
from pathlib import Path

import pytest
from workspaces import Drill, put

from metier.errors import ConfigError
from metier.testing.scripted import says

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null/x", "nowhere.yaml", "."])
async def test_a_policy_that_is_a_broken_link_is_an_error_and_not_an_empty_policy(tmp_path: Path, target: str) -> None:
    (tmp_path / ".agent").mkdir()
    (tmp_path / ".agent/policy.yaml").symlink_to(target)

    with pytest.raises(ConfigError, match="cannot be used") as refused:
        await Drill(tmp_path, [says("Done.")]).run()

    assert refused.value.exit_code == 2


async def test_a_policy_that_is_a_pipe_is_rejected_without_blocking(tmp_path: Path) -> None:
    (tmp_path / ".agent").mkdir()
    os.mkfifo(tmp_path / ".agent/policy.yaml")

    with pytest.raises(ConfigError, match="is not a regular file"):
        await Drill(tmp_path, [says("Done.")]).run()


async def test_a_policy_that_is_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    put(tmp_path, {"shared.yaml": "rules: [{tool: Nonsense, allow: true}]"})
    (tmp_path / ".agent").mkdir()
    (tmp_path / ".agent/policy.yaml").symlink_to("../shared.yaml")

    with pytest.raises(ConfigError):
        await Drill(tmp_path, [says("Done.")]).run()
