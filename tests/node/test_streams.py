"""What a person is told of an error of the library: its cause, however it is wrapped."""

from __future__ import annotations

import socket

import pytest
import trio

from node.streams import cause


def raised(exc: BaseException, from_: BaseException) -> BaseException:
    exc.__cause__ = from_
    return exc


def test_the_cause_is_the_bottom_of_the_chain_and_of_groups_in_it() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    group = ExceptionGroup("all attempts to connect failed", [raised(OSError("attempt"), refused), OSError("other")])
    assert cause(raised(RuntimeError("dial"), group)) == "connection refused"
    assert cause(ValueError("plain")) == "plain"
    assert cause(ValueError()) == "ValueError"


def test_the_cause_is_one_short_line() -> None:
    assert cause(ValueError("a" * 500 + "\nsecond")) == "a" * 160


async def test_the_cause_of_a_dial_is_said_without_numbers_and_the_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="failed") as caught:
            await trio.open_tcp_stream(*closed.getsockname())
    assert cause(caught.value) == "connection refused"
