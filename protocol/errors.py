"""The error tree: every error says whose fault it is and, in `hint`, what to do about it.

SwarmError
├── PeerError                     the other side, or the way to it
│   ├── PeerUnreachable           no address of it answered
│   ├── RequestTimeout            it answered nothing in time
│   ├── RemoteFailure             it said that it could not
│   └── PeerMisbehaved            it broke the protocol
│       └── DecodeError           its bytes are not what the strict decoder takes
└── LocalError                    this node, its operator or its caller
    ├── ConfigError               a setting, a ticket or a profile is unusable
    ├── UsageError                the caller asked for something that cannot be
    │   ├── NotFound              no such task, peer or unit here
    │   ├── Conflict              the client key already names another task
    │   └── Refused               policy, permission or a bound says no
    ├── DaemonUnreachable         no daemon answers for this profile
    ├── StoreError                the database or its disk
    ├── EngineError               text generation or embedding
    └── LeaseLost                 the turn belongs to somebody else now

Catch broad classes at service edges; translate foreign exceptions in the adapter that meets them.
Asserts are for our own bugs only.
"""

from __future__ import annotations

from typing import ClassVar


class SwarmError(Exception):
    """Root of every error that masos raises on purpose.

    Attributes:
        code: stable snake_case name, the `code` of `{code, message, hint}`.
        hint: what the person in front of it can do; may be empty.
        exit_code: process exit status of a command that ends with this error.
    """

    code: ClassVar[str] = "swarm_error"
    exit_code: ClassVar[int] = 70
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    def as_dict(self) -> dict[str, str]:
        """The machine form that `--json` and the control API give."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class PeerError(SwarmError):
    """The other side, or the way to it, failed."""

    code = "peer_error"
    exit_code = 69


class PeerUnreachable(PeerError):
    """No address of the peer answered."""

    code = "peer_unreachable"


class RequestTimeout(PeerError):
    """The peer answered nothing before the deadline."""

    code = "timeout"
    exit_code = 75


class RemoteFailure(PeerError):
    """The peer said that it could not do it."""

    code = "remote_failure"


class PeerMisbehaved(PeerError):
    """The peer broke the protocol; it is counted against it."""

    code = "peer_misbehaved"


class DecodeError(PeerMisbehaved):
    """Bytes from outside are not what the one strict decoder takes."""

    code = "decode_error"


class LocalError(SwarmError):
    """This node, its operator or its caller."""

    code = "local_error"


class ConfigError(LocalError):
    """A setting, a ticket or a profile is unusable."""

    code = "config_error"
    exit_code = 78


class UsageError(LocalError):
    """The caller asked for something that cannot be."""

    code = "usage_error"
    exit_code = 64


class NotFound(UsageError):
    """There is no such task, peer or unit on this node."""

    code = "not_found"
    exit_code = 66


class Conflict(UsageError):
    """The client key already names a task with other contents."""

    code = "conflict"
    exit_code = 73


class Refused(UsageError):
    """Policy, permission or a bound says no."""

    code = "refused"
    exit_code = 77


class DaemonUnreachable(LocalError):
    """No daemon answers for this profile."""

    code = "daemon_unreachable"
    exit_code = 69
    default_hint = "start it with `masos up`"


class StoreError(LocalError):
    """The database or its disk failed."""

    code = "store_error"
    exit_code = 74


class EngineError(LocalError):
    """Text generation or embedding failed."""

    code = "engine_error"
    exit_code = 76


class LeaseLost(LocalError):
    """The turn belongs to somebody else now."""

    code = "lease_lost"
