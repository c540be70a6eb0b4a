"""Train a GPT-2 by opbench and by PyTorch for many steps, from the same weights and in the same order of data.

    python tests/loss_curves.py FILE.json [--batch 4] [--steps 300] [--precision bf16] [--layers 12] ...

FILE.json has the loss of each step of both. PyTorch runs eagerly: float32, or bf16 by autocast.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opbench.graph.recipe import Recipe
from opbench.graph.zoo import gpt2_for_training
from opbench.networks.plan.data import load_data
from opbench.networks.plan.torch_gpu import precision_settings
from opbench.networks.train.torch_training import StepProblem, TorchMode, TorchStep
from opbench.networks.train.train_options import TrainingSettings
from opbench.networks.train.training import Trainer
from opbench.paths import write_atomically

SIZES = {"tokens": 1024, "layers": 12, "heads": 12, "width": 768, "vocabulary": 50304}


def torch_losses(trainer: Trainer, device: str) -> list[float]:
    """Return the loss of each step by PyTorch, with the batches, weights and learning rates of a training."""
    import torch

    order, batch, data = trainer.initial_state()["order"].reshape(-1), trainer.batch, trainer.data
    rows = order[:batch]
    problem = StepProblem(
        trainer.network, trainer.recipe, trainer.options.precision, data.images[rows], data.targets[rows]
    )
    losses = []
    with precision_settings(torch, problem.precision):
        step = TorchStep(problem, device, TorchMode())
        for number, rate in enumerate(trainer.recipe.learning_rates()):
            rows = order[number * batch : (number + 1) * batch]
            step.take_batch(data.images[rows], data.targets[rows])
            for group in step.optimizer.param_groups:
                group["lr"] = float(rate)
            losses.append(float(step()))
    return losses


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in both ways and write both curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--precision", choices=("f32", "tf32", "bf16"), default="bf16")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--data", default="text")
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    given = parser.parse_args(arguments)
    sizes = {name: getattr(given, name) for name in SIZES}
    graph = gpt2_for_training(batch=given.batch, **sizes)
    recipe = Recipe(optimizer="adamw", decay=0.1, learning_rate=given.lr, schedule="cosine", steps=given.steps)
    data = load_data(given.data, (given.batch, given.tokens), 0, "gpt2")
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingSettings(recipe=recipe, backend=given.backend, precision=given.precision, out=Path(folder))
        trainer = Trainer(graph, data, options)
        trainer.run()
    import torch

    device = "cuda" if given.backend == "cuda" else "cpu"
    curves = {"opbench": trainer.losses, "PyTorch": torch_losses(trainer, device)}
    record = {
        "network": "gpt2",
        "sizes": {"batch": given.batch, **sizes},
        "data": given.data,
        "precision": given.precision,
        "optimizer": "adamw",
        "learning_rate": given.lr,
        "decay": recipe.decay,
        "schedule": recipe.schedule,
        "gpu": trainer.gpu,
        "torch": torch.__version__,
        "losses": curves,
    }
    given.file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.file, (json.dumps(record) + "\n").encode())
    last = {name: np.mean(losses[-20:]) for name, losses in curves.items()}
    print(
        ", ".join(f"{name}: {losses[-1]:.4f}, mean of the last 20 {last[name]:.4f}" for name, losses in curves.items())
    )


if __name__ == "__main__":
    main()
