"""Text as tokens, one per byte, from the sources of Python's library or from a user's file."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np

from opbench.errors import UsageError

MAX_TEST_SEQUENCES = 16
"""Most sequences of the test set, whose scores of all places are in memory together."""
LIBRARY_TEXT = "text"
"""The name of the data set of Python's library."""


def library_text() -> bytes:
    """Return the sources of the top-level modules of Python's standard library, sorted by name."""
    folder = Path(sysconfig.get_path("stdlib"))
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def read_text(name: str) -> bytes:
    """Return the bytes of the built-in text `text`, or of a user's .txt file."""
    if name == LIBRARY_TEXT:
        return library_text()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError(
            f"--data {name}: cannot be read: {error.strerror or error}; name a .txt file, or write --data text",
            kind="unreadable",
            subject=name,
            cause=error,
        ) from None


def sequences(text: bytes, tokens: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of tokens (n, tokens) in int32, and the next token of each token in the same shape.

    A sequence starts with the last target of the one before. Raises UsageError for a text that has fewer than
    two.
    """
    count = (len(text) - 1) // tokens
    if count < 2:
        raise UsageError(
            f"--data {name}: this text has {len(text)} bytes, and two sequences of {tokens} tokens, one for training "
            f"and one for the test set, need {2 * tokens + 1}; choose a smaller --tokens or a longer text",
            kind="too-short",
            subject=name,
            value=len(text),
            allowed=2 * tokens + 1,
        )
    token_ids = np.frombuffer(text, np.uint8)[: count * tokens + 1].astype(np.int32)
    return token_ids[:-1].reshape(count, tokens), token_ids[1:].reshape(count, tokens)


def is_test_sequence(count: int) -> np.ndarray:
    """Return which of `count` sequences are test data: a fifth, at most MAX_TEST_SEQUENCES, evenly distributed."""
    is_test = np.zeros(count, bool)
    is_test[np.linspace(0, count - 1, min(MAX_TEST_SEQUENCES, max(1, count // 5))).astype(int)] = True
    return is_test
