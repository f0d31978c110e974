"""The control API of a node, for this machine's user.

    GET  /healthz                  the process lives                              needs no token, unlike all others
    GET  /readyz                   200 or 503, and why
    GET  /v1/status                who this node is, whom it is linked to, what it holds
    POST /v1/tasks                 submit; 201 for a new task, 200 for one that the client key already names
    GET  /v1/tasks                 one line per task
    GET  /v1/tasks/{id}            the whole view; an id may be a unique prefix
    POST /v1/tasks/{id}/cancel
    GET  /v1/tasks/{id}/events     the view again whenever it changed (node/control/events.py)
    GET  /v1/agents                every live capability record
    POST /v1/find                  the agents nearest to a text, among those that pass filters
    GET  /v1/peers                 every other node that is linked, a member, or dialled, with its state
    POST /v1/ping                  one round trip over the open link to a peer
    GET  /v1/memory                digests per space
    POST /v1/memory/verify         audit and comparison (node/control/memory.py)

It serves the user's own node only, and says nothing that the node's log does not hold.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, cast

from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gossip.pings import PingPeer
from kernel.commands import CancelTask, FindAgents, ListAgents, ListTasks, MemoryDigests, ShowTask, Submit
from kernel.discovery import LIMIT_MAX, Filters
from kernel.memory.manager import chunk_document
from node.control.answers import Body, answer, on_bug, on_http_error, on_swarm_error, read_body
from node.control.events import Followers, TaskEvents
from node.control.guard import BearerGuard
from node.control.memory import verify_running
from node.control.port import NodePort
from node.core import ListPeers
from protocol.errors import SwarmError
from protocol.records import NAME_CHARS_MAX, TEXT_CHARS_MAX

SUBMIT_S_MAX: Final = 180.0
"""Embedding 128 document parts and waiting for another node's acknowledgement."""

Amount = Annotated[int, Field(ge=1, le=2**53)]
Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]
Label = Annotated[str, Field(max_length=NAME_CHARS_MAX)]


class SubmitBody(Body):
    """A task as its user states it; what is left out is the node's default or unlimited."""

    client_key: Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
    objective: Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]
    document: Annotated[str, Field(min_length=1)] | None = None
    tokens: Amount | None = None
    calls: Amount | None = None
    seconds: Seconds | None = None
    deadline_s: Seconds | None = None
    lease_s: Annotated[float, Field(ge=0.1, le=3_600)] | None = None
    eps_s: Annotated[float, Field(ge=0, le=600)] | None = None
    max_steps: Annotated[int, Field(ge=1, le=1_000)] | None = None
    ack: Literal["local", "w1"] = "w1"

    def command(self) -> Submit:
        """What the core is asked.

        Raises:
            Refused: a document without text, or with too many parts.
        """
        return Submit(
            client_key=self.client_key,
            objective=self.objective,
            document=chunk_document(self.document) if self.document is not None else (),
            contract=(self.tokens, self.calls, _ms(self.seconds), None),
            deadline_ms=_ms(self.deadline_s),
            lease_ms=_ms(self.lease_s),
            eps_ms=_ms(self.eps_s),
            max_steps=self.max_steps,
            ack=self.ack,
        )


class CancelBody(Body):
    """Why a task is stopped."""

    reason: Annotated[str, Field(max_length=500)] = ""


class FindBody(Body):
    """What an agent should be able to do, and what it must have."""

    text: Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]
    tools: Annotated[tuple[Label, ...], Field(max_length=16, strict=False)] = ()
    model: Label = ""
    context_tokens_min: Annotated[int, Field(ge=0, le=2**31)] = 0
    price_micro_money_max: Annotated[int, Field(ge=0, le=2**53)] | None = None
    data_policy: Literal["local", "external"] | None = None
    skill: Label = ""
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] | None = None
    explain: bool = False

    def command(self) -> FindAgents:
        """What the core is asked."""
        filters = Filters(
            tools=self.tools,
            model=self.model,
            context_tokens_min=self.context_tokens_min,
            price_max=self.price_micro_money_max,
            data_policy=self.data_policy,
            skill=self.skill,
        )
        return FindAgents(self.text, filters, self.limit, self.explain)


class PingBody(Body):
    """Whom to ping: its peer id, or an end of it that no other peer has."""

    peer: Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]


class Empty(Body):
    """Nothing is asked for."""


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


class Api:
    """The handlers, around one node."""

    def __init__(self, node: NodePort) -> None:
        self._node = node
        self._followers = Followers(node)

    def routes(self) -> list[Route]:
        """Every route; the table of the module docstring."""
        return [
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/v1/status", self.status),
            Route("/v1/tasks", self.submit, methods=["POST"]),
            Route("/v1/tasks", self.tasks),
            Route("/v1/tasks/{task}", self.show),
            Route("/v1/tasks/{task}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/tasks/{task}/events", self.events),
            Route("/v1/agents", self.agents),
            Route("/v1/find", self.find, methods=["POST"]),
            Route("/v1/peers", self.peers),
            Route("/v1/ping", self.ping, methods=["POST"]),
            Route("/v1/memory", self.memory),
            Route("/v1/memory/verify", self.verify, methods=["POST"]),
        ]

    async def healthz(self, _request: Request) -> Response:
        """It answers, so it lives."""
        return answer({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """Whether the node can do its part."""
        readiness = await self._node.readiness()
        body = {"ready": readiness.ready, "reasons": list(readiness.reasons), "checks": readiness.checks}
        return answer(body, 200 if readiness.ready else 503)

    async def status(self, _request: Request) -> Response:
        """For `masos status`."""
        return answer(await self._node.status())

    async def submit(self, request: Request) -> Response:
        """Open a task, or find it."""
        body = await read_body(request, SubmitBody)
        line = cast(dict[str, object], await self._node.ask(body.command(), SUBMIT_S_MAX))
        return answer(line, 200 if line["existing"] else 201, {"location": f"/v1/tasks/{line['task']}"})

    async def tasks(self, _request: Request) -> Response:
        """All that this node holds."""
        return answer({"tasks": await self._node.ask(ListTasks())})

    async def show(self, request: Request) -> Response:
        """One task."""
        return answer(await self._node.ask(ShowTask(request.path_params["task"])))

    async def cancel(self, request: Request) -> Response:
        """The user stops a task."""
        body = await read_body(request, CancelBody)
        return answer(await self._node.ask(CancelTask(request.path_params["task"], body.reason)))

    async def events(self, request: Request) -> Response:
        """Follow a task."""
        first = await self._node.ask(ShowTask(request.path_params["task"]))
        return TaskEvents(self._node, self._followers, cast(dict[str, object], first))

    async def agents(self, _request: Request) -> Response:
        """Everybody's offers, as this node holds them."""
        return answer({"agents": await self._node.ask(ListAgents())})

    async def find(self, request: Request) -> Response:
        """By meaning; nobody near is an empty list, not an error."""
        body = await read_body(request, FindBody)
        return answer(await self._node.ask(body.command()))

    async def peers(self, _request: Request) -> Response:
        """Whom this node knows, and how it stands with them."""
        return answer({"peers": await self._node.ask(ListPeers())})

    async def ping(self, request: Request) -> Response:
        """One round trip."""
        body = await read_body(request, PingBody)
        return answer(await self._node.ask(PingPeer(body.peer)))

    async def memory(self, _request: Request) -> Response:
        """What two nodes compare to see that they hold the same."""
        return answer({"spaces": await self._node.ask(MemoryDigests())})

    async def verify(self, request: Request) -> Response:
        """Audit and comparison; a memory that is not whole is a result, not an error."""
        await read_body(request, Empty)
        return answer(await verify_running(self._node))


def build_app(node: NodePort, token: str) -> Starlette:
    """The ASGI application."""
    return Starlette(
        routes=Api(node).routes(),
        middleware=[Middleware(BearerGuard, token=token)],
        exception_handlers={SwarmError: on_swarm_error, HTTPException: on_http_error, Exception: on_bug},
    )
