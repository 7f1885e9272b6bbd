"""Push notifications: where a caller wants to hear how its task stands. They leave through the outbox of the store."""

from collections.abc import Sequence

from a2a.types.a2a_pb2 import AuthenticationInfo, TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from pydantic import ValidationError

from metier.doors.a2a.identity import Caller
from metier.errors import ToolFailed
from metier.runtime.notify.push import Target, check_target
from metier.runtime.runs import Runtime
from metier.store.outbox import Receiver

MOST_RECEIVERS = 10
"""Of one task."""
_MOST_ID_CHARACTERS = 200


async def set_config(
    runtime: Runtime, run_id: str, config: TaskPushNotificationConfig, *, caller: Caller
) -> TaskPushNotificationConfig:
    """Raises `InvalidParamsError` for an address that the server may not reach."""
    name = config.id or run_id
    if len(name) > _MOST_ID_CHARACTERS:
        raise InvalidParamsError(message=f"The id is longer than {_MOST_ID_CHARACTERS} characters")
    try:
        target = Target(
            url=config.url,
            token=config.token,
            scheme=config.authentication.scheme,
            credentials=config.authentication.credentials,
            base_url=caller.base_url,
        )
        await check_target(target, runtime.place)
    except ValidationError as error:
        names = ", ".join(str(problem["loc"][0]) for problem in error.errors())
        raise InvalidParamsError(message=f"Not usable in a notification: {names}") from error
    except ToolFailed as error:
        raise InvalidParamsError(message=error.message) from error
    others = [each for each in await runtime.store.outbox.list_receivers(run_id) if each.name != name]
    if len(others) >= MOST_RECEIVERS:
        raise InvalidParamsError(message=f"A task has at most {MOST_RECEIVERS} receivers")
    receiver = Receiver(run_id=run_id, name=name, data=target.model_dump_json())
    await runtime.store.outbox.set_receiver(receiver)
    return _build(receiver)


async def get_config(runtime: Runtime, run_id: str, name: str) -> TaskPushNotificationConfig:
    for config in await list_configs(runtime, run_id):
        if config.id == name:
            return config
    raise TaskNotFoundError


async def list_configs(runtime: Runtime, run_id: str) -> Sequence[TaskPushNotificationConfig]:
    return [_build(each) for each in await runtime.store.outbox.list_receivers(run_id)]


def _build(receiver: Receiver) -> TaskPushNotificationConfig:
    """As it was set, but credentials are not said again."""
    target = Target.model_validate_json(receiver.data)
    config = TaskPushNotificationConfig(id=receiver.name, task_id=receiver.run_id, url=target.url, token=target.token)
    if target.scheme:
        config.authentication.CopyFrom(AuthenticationInfo(scheme=target.scheme))
    return config
