"""What a run may save of the costs of bytes and signatures, without a change of any verdict.

- Frames. In `wire = "bytes"` each one is encoded, compared with what its bytes decode to, and strictly decoded by
  its receiver. In `wire = "frozen"` the receiver is handed the sender's frozen object; sizes and caps stay true.
- Signatures. `crypto = "memo"` checks a (key, message, signature) once per run; the verdict is that of
  `verify_raw`, which is a function of the three.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from protocol.errors import DecodeError, SwarmError
from protocol.identity import Verify, verify_raw
from protocol.machine import Misbehaved, PeerUp, Received
from protocol.messages import LANE_OF, Frame, Hello, decode_frame, encode_frame
from protocol.peer import PeerID
from protocol.transport import Lane

FROZEN_MAX: Final = 65_536
MEMO_MAX: Final = 1_000_000
Wire = Literal["bytes", "frozen"]
Crypto = Literal["memo", "real"]


class RoundTrip(AssertionError):
    """A frame is not what its own bytes say."""


class FrameCodec:
    """Frames to bytes and back for one run."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._frozen: dict[bytes, Frame] = {}

    def encode(self, frame: Frame) -> bytes:
        """The bytes of a frame that a core sends.

        Raises:
            RoundTrip: its bytes do not decode to it.
        """
        raw = encode_frame(frame)
        if self._wire == "frozen":
            if len(self._frozen) >= FROZEN_MAX:
                del self._frozen[next(iter(self._frozen))]
            self._frozen[raw] = frame
            return raw
        try:
            back = decode_frame(raw, LANE_OF[type(frame)])
        except SwarmError as exc:
            raise RoundTrip(f"{type(frame).__name__} does not decode: {exc}") from exc
        if back != frame:
            raise RoundTrip(f"{type(frame).__name__} decodes to something else")
        return raw

    def decode(self, raw: bytes, lane: Lane) -> Frame:
        """The frame behind bytes that came on a lane.

        Raises:
            DecodeError: they are no frame of that lane.
        """
        frozen = self._frozen.get(raw)
        return frozen if frozen is not None and LANE_OF[type(frozen)] is lane else decode_frame(raw, lane)

    def received(self, peer: PeerID, lane: Lane, raw: bytes) -> Received | Misbehaved:
        """The event that bytes from a linked peer are, as node/driver.py tells it to the core."""
        try:
            return Received(peer, self.decode(raw, lane))
        except DecodeError as exc:
            return Misbehaved(peer, exc.message)

    def greeting(self, peer: PeerID, raw: bytes) -> PeerUp | Misbehaved:
        """The event that a first frame is."""
        try:
            hello = self.decode(raw, Lane.CONTROL)
        except DecodeError as exc:
            return Misbehaved(peer, exc.message)
        return PeerUp(peer, hello) if isinstance(hello, Hello) else Misbehaved(peer, "the first frame is not a Hello")


def verifier(crypto: Crypto) -> Verify:
    """The signature check of a run."""
    return verify_raw if crypto == "real" else MemoVerify()


class MemoVerify:
    """`verify_raw`, asked once for equal arguments; the oldest answers are forgotten first."""

    def __init__(self) -> None:
        self._known: dict[bytes, bool] = {}
        self.asked = 0

    def __call__(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """See protocol.identity.Verify."""
        key = hashlib.blake2b(digest_size=20)
        for part in (public, message, signature):
            key.update(len(part).to_bytes(8, "big"))
            key.update(part)
        name = key.digest()
        verdict = self._known.get(name)
        if verdict is None:
            self.asked += 1
            verdict = verify_raw(public, message, signature)
            if len(self._known) >= MEMO_MAX:
                del self._known[next(iter(self._known))]
            self._known[name] = verdict
        return verdict
