"""Failures of model calls, independent of the vendor.

CallFailed                      a ProviderError: exit code 8
├── RateLimited        retry    too many requests or tokens
├── Overloaded         retry    the vendor has no capacity
├── ServerFailed       retry    server error (5xx)
├── TimedOut           retry    no complete answer in time
├── ConnectionLost     retry    no connection, or it broke before the answer was complete
├── ReplyBroken        retry    a malformed or incomplete answer
├── AnswerTooLarge              a remote agent's answer exceeds the limit
├── BadRequest                  the server rejects this request
│   ├── ContextTooLong          the request exceeds the model's window
│   ├── ToolsUnsupported        the server or model has no tool calling
│   └── SchemaUnsupported       the server can't enforce a schema
├── AuthFailed                  invalid key, or missing permission
│   └── MissingKey              no key; found before any call
├── NotFound                    no such model or address
├── ModelNotAllowed             not in `allowed_models`; found before any call
└── QuotaExhausted              no credit left; waiting does not help
"""

from typing import ClassVar

from metier.errors import ProviderError


class CallFailed(ProviderError):
    """One attempt at a reply failed. `reason` is its code in events; `retryable` if another attempt may succeed."""

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
        """Create a failure. `may_retry` is False if the server forbids sending the same request again."""
        super().__init__(message, hint=hint)
        self.retryable = self.retryable and may_retry
        self.status = status
        """The HTTP status, if any."""
        self.retry_after_seconds = retry_after_seconds
        """The wait that the server asked for, if any."""


class RateLimited(CallFailed):
    reason = "rate_limited"
    retryable = True


class Overloaded(CallFailed):
    reason = "overloaded"
    retryable = True


class ServerFailed(CallFailed):
    reason = "server_error"
    retryable = True


class TimedOut(CallFailed):
    reason = "timeout"
    retryable = True


class ConnectionLost(CallFailed):
    reason = "connection_lost"
    retryable = True


class ReplyBroken(CallFailed):
    reason = "reply_broken"
    retryable = True


class AnswerTooLarge(CallFailed):
    reason = "answer_too_large"


class BadRequest(CallFailed):
    reason = "bad_request"


class ContextTooLong(BadRequest):
    reason = "context_too_long"


class ToolsUnsupported(BadRequest):
    reason = "tools_unsupported"


class SchemaUnsupported(BadRequest):
    reason = "schema_unsupported"


class AuthFailed(CallFailed):
    reason = "auth_failed"


class MissingKey(AuthFailed):
    reason = "missing_provider_api_key"


class NotFound(CallFailed):
    reason = "not_found"


class ModelNotAllowed(CallFailed):
    reason = "model_not_allowed"


class QuotaExhausted(CallFailed):
    reason = "quota_exhausted"


def list_reasons() -> frozenset[str]:
    """Return the codes of all failures of model calls."""
    return frozenset(kind.reason for kind in _list_kinds(CallFailed))


def _list_kinds(kind: type[CallFailed]) -> list[type[CallFailed]]:
    return [kind, *(inner for child in kind.__subclasses__() for inner in _list_kinds(child))]
