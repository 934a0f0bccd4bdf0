"""What a task says of its progress: a word for its state meanwhile, and what there is to say, in JSON."""

from __future__ import annotations

from typing import NamedTuple

from fbtasks.tasks.call import Said


def packed(word: str, meta: bytes) -> bytes:
    """It as a task says it to its worker."""
    return b"%b\n%b" % (word.encode(), meta)  # JSON is written without line breaks


class Progress(NamedTuple):
    """How far a task has come that runs, as it says."""

    id: int
    claim_id: int
    word: str
    """How its state is to be called meanwhile."""
    meta: bytes
    """What there is to say, in JSON."""

    @classmethod
    def of(cls, said: Said) -> Progress:
        """What *said* means."""
        word, _, meta = said.data.rpartition(b"\n")
        return cls(said.id, said.claim_id, word.decode("utf-8", "replace"), meta)
