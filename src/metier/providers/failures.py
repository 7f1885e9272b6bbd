"""The ways in which a model can fail to answer, whatever its vendor calls them.

CallFailed                      a ProviderError: exit code 8
├── RateLimited        retry    too many requests or tokens for now
├── Overloaded         retry    the vendor has no capacity for now
├── ServerFailed       retry    the server broke (5xx)
├── TimedOut           retry    no complete answer in time
├── ConnectionLost     retry    no connection, or it broke before the answer was complete
├── ReplyBroken        retry    an answer that is malformed, cut off or of the wrong kind
├── BadRequest                  the server refuses this request, or it is at odds with another one
│   ├── ContextTooLong          it refuses it because it does not fit the model's window
│   ├── ToolsUnsupported        it has no tool calling
│   └── SchemaUnsupported       it cannot hold a reply to a schema
├── AuthFailed                  the key is wrong or may not do this
│   └── MissingKey              no key was given at all; found before any call
├── NotFound                    no such model or address
├── ModelNotAllowed             a model outside the list that binds this run; found before any call
└── QuotaExhausted              nothing left to spend; waiting does not help
"""

from typing import ClassVar

from metier.errors import ProviderError


class CallFailed(ProviderError):
    """One attempt at a reply failed. `reason` is its word in events, `retryable` says if another attempt may help."""

    reason: ClassVar[str] = "provider_failed"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        status: int | None = None,
        retry_after_seconds: float | None = None,
        may_retry: bool = True,
    ) -> None:
        """`may_retry`: False where the server said that the same request must not be sent again."""
        super().__init__(message, hint=hint)
        self.retryable = self.retryable and may_retry
        self.status = status
        """The HTTP status, where there was one."""
        self.retry_after_seconds = retry_after_seconds
        """How long the server asked to wait, where it did."""


class RateLimited(CallFailed):
    """Too many requests or tokens for now."""

    reason = "rate_limited"
    retryable = True


class Overloaded(CallFailed):
    """The vendor has no capacity for now."""

    reason = "overloaded"
    retryable = True


class ServerFailed(CallFailed):
    """The server broke."""

    reason = "server_error"
    retryable = True


class TimedOut(CallFailed):
    """No complete answer in time."""

    reason = "timeout"
    retryable = True


class ConnectionLost(CallFailed):
    """No connection, or it broke before the answer was complete."""

    reason = "connection_lost"
    retryable = True


class ReplyBroken(CallFailed):
    """An answer that is malformed, cut off, too large or of the wrong kind."""

    reason = "reply_broken"
    retryable = True


class AnswerTooLarge(CallFailed):
    """A remote agent answered with more than is read from one; asking again gives the same."""

    reason = "answer_too_large"


class BadRequest(CallFailed):
    """The server refuses this request; sending it again changes nothing."""

    reason = "bad_request"


class ContextTooLong(BadRequest):
    """The request does not fit the model's window."""

    reason = "context_too_long"


class ToolsUnsupported(BadRequest):
    """The server, or this model of it, takes no tools."""

    reason = "tools_unsupported"


class SchemaUnsupported(BadRequest):
    """The server takes no schema for the reply."""

    reason = "schema_unsupported"


class AuthFailed(CallFailed):
    """The key is wrong, or may not do this."""

    reason = "auth_failed"


class MissingKey(AuthFailed):
    """No key was given; found before any call."""

    reason = "missing_provider_api_key"


class NotFound(CallFailed):
    """No such model, or no such address."""

    reason = "not_found"


class ModelNotAllowed(CallFailed):
    """The list of models that binds this run does not have it; nothing was sent."""

    reason = "model_not_allowed"


class QuotaExhausted(CallFailed):
    """Nothing left to spend; waiting does not help."""

    reason = "quota_exhausted"


def list_reasons() -> frozenset[str]:
    """The words of all the ways in which a provider can fail to answer."""
    return frozenset(kind.reason for kind in _list_kinds(CallFailed))


def _list_kinds(kind: type[CallFailed]) -> list[type[CallFailed]]:
    return [kind, *(below for inner in kind.__subclasses__() for below in _list_kinds(inner))]
