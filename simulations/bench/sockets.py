"""What processes have sent over TCP, as the kernel counts it: the bytes on the wire above TCP, encryption included.

The figures come from the socket diagnostics of Linux (netlink, sock_diag(7)), because no node counts what its
connections cost below its frames. A connection that ends takes its count with it: read at both ends of a window in
which connections stay.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_SOCK_DIAG: Final = 4  # the netlink protocol
_BY_FAMILY: Final = 20  # the message type
_REQUEST_DUMP: Final = 0x301
_DONE: Final = 3
_ERROR: Final = 2
_ESTABLISHED: Final = 1 << 1
_TCP_INFO: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI48x")
_MESSAGE_BYTES: Final = 72
_INODE_AT: Final = 68
_BYTES_SENT_AT: Final = 200  # tcpi_bytes_sent, since Linux 4.19
_READ_BYTES: Final = 1 << 16
_WAIT_S: Final = 2.0


def sent_by(pids: list[int]) -> dict[int, int]:
    """Bytes that the established TCP connections of each process have sent so far, loopback or not.

    Raises:
        OSError: this kernel does not tell.
    """
    sent: dict[int, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        sent.update(_dump(family))
    return {pid: sum(sent.get(inode, 0) for inode in _inodes(pid)) for pid in pids}


def _inodes(pid: int) -> Iterator[int]:
    """The sockets that a process holds open."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # closed meanwhile
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                yield int(target[8:-1])


def _dump(family: int) -> dict[int, int]:
    """Bytes sent per inode."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0, _ESTABLISHED)
    found: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as sock:
        sock.settimeout(_WAIT_S)
        sock.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
        while True:
            for kind, message in _messages(sock.recv(_READ_BYTES)):
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    raise OSError("the kernel refuses socket diagnostics")
                inode, sent = parse(message)
                found[inode] = sent


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, _, _, _ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[length + 3 & ~3 :]


def parse(message: bytes) -> tuple[int, int]:
    """Inode and bytes sent of one answer (inet_diag_msg, then attributes); 0 where the kernel does not count them."""
    (inode,) = struct.unpack_from("=I", message, _INODE_AT)
    rest = message[_MESSAGE_BYTES:]
    while len(rest) >= 4:
        length, kind = struct.unpack_from("=HH", rest)
        if kind == _TCP_INFO and length >= 4 + _BYTES_SENT_AT + 8:
            return inode, struct.unpack_from("=Q", rest, 4 + _BYTES_SENT_AT)[0]
        rest = rest[max(length + 3 & ~3, 4) :]
    return inode, 0
