"""A file with the losses of all steps, and the score on the test set."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opbench.paths import write_errors

RESUME = "continue from the last checkpoint with --resume"
"""Remedy for a full disk during a training."""


@dataclass
class LossLog:
    """A file with the loss of every step, one per line, written during the training."""

    path: Path
    losses: list[float]

    def __enter__(self) -> LossLog:
        with write_errors(self.path, "choose another folder with --out DIR"):
            self._file = self.path.open("ab")
        return self

    def append(self, step: int, loss: float) -> None:
        """Append the loss of one step, in the shortest text that gives the same float32."""
        self._file.write(f'{{"step": {step + 1}, "loss": {np.float32(loss)!s}}}\n'.encode())
        self.losses.append(loss)

    def flush(self) -> None:
        """Write buffered losses to the file, so that other programs can read the losses."""
        with write_errors(self.path, RESUME):
            self._file.flush()

    def sync_to_disk(self) -> int:
        """Force the file to disk and return its size in bytes."""
        with write_errors(self.path, RESUME):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_losses(path: Path) -> list[float]:
    """Return the losses in a file, up to an incomplete line."""
    losses: list[float] = []
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return losses
    for line in lines:
        try:
            losses.append(float(np.float32(json.loads(line)["loss"])))
        except (ValueError, KeyError, TypeError):
            break
    return losses


def score_outputs(loss: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the score of outputs: accuracy for classes, intersection over union for masks, otherwise the mean loss."""
    if loss == "cross_entropy":
        return float((outputs.argmax(axis=1) == targets).mean())
    if loss == "binary_cross_entropy":
        predicted, expected = outputs > 0, targets > 0.5
        return float((predicted & expected).sum() / max(1, (predicted | expected).sum()))
    error = outputs.astype(np.float64) - targets
    return float(np.abs(error).mean() if loss == "l1" else (error**2).mean())
