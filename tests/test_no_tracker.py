"""No text of the project, also in packed runs, speaks of an issue tracker: who reads it cannot look there."""

from __future__ import annotations

import re
import subprocess

import pytest

from opbench.records import unpacked
from support.common import ROOT

MENTION = re.compile(
    rb"\bissue\s*#?\s*\d+|\bissues\s+#\d+|/issues/\d+|\b(?:this|github) issue\b(?! (?:slot|rate|of))", re.I
)


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("needs git and a clone")
    return [name for name in listed.stdout.decode().split("\0") if name]


def text_of(name: str) -> bytes:
    """A file's content, unpacked where it is a packed run; nothing for pictures."""
    path = ROOT / name
    if not path.is_file() or path.suffix in (".png", ".woff2", ".npz", ".safetensors"):
        return b""
    return unpacked(path)


def test_the_pattern_finds_what_it_is_for() -> None:
    # Samples of the mentions that are refused; they refer to nothing.
    texts = ("beside cuBLAS ({} 13, section 3)", "see {} #4", "github.com/a/b/{}s/12", "this {}")
    for text in (text.format("issue").encode() for text in texts):
        assert MENTION.search(text), text
    for text in (b"a thread issues 2 x UNROLL loads", b"instructions issued 4 at a time", b"the issue slots"):
        assert not MENTION.search(text), text


def test_nothing_mentions_an_issue() -> None:
    own = "tests/test_no_tracker.py"
    texts = ((name, text_of(name)) for name in tracked() if name != own)
    # Most texts lack the word, which is found sooner than the pattern.
    found = {name: hit[0] for name, text in texts if b"issue" in text.lower() and (hit := MENTION.search(text))}
    assert found == {}
