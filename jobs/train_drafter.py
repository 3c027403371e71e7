"""Train a block-diffusion drafter for a verifier, on the verifier's own answers.

    python -m jobs.train_drafter --corpus corpus/demo --run runs/demo --minutes 120
    python -m jobs.train_drafter --corpus corpus/demo --run runs/demo --features-only   # fill the feature cache beside it

The learning rate follows a cosine over the time budget, and the time spent so far is in the checkpoint: a run that was
stopped resumes with the same command, a longer budget continues it; ``--start`` goes on from a finished drafter's weights
with a new schedule. Metrics go to ``metrics.jsonl`` in the run's
directory, the weights to ``drafter/`` there. No Ray is used. One torch thread unless ``--threads`` says otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from cluster.models.dflash import DFlashConfig, DFlashModel, default_target_layers, load_dflash, save_dflash
from cluster.models.loading import ModelSpec, load_causal_lm
from cluster.models.verifier import Verifier
from jobs.training.blocks import block_hidden, block_loss, sample_blocks
from jobs.training.data import FeatureStore, TrainingSequence, frequent_ids, load_corpus, split
from jobs.training.evaluate import held_out_acceptance
from jobs.training.initialise import drafter_config, from_verifier


@dataclass(frozen=True)
class Recipe:
    """The knobs of a training run; they are kept in its checkpoint."""

    block: int = 8
    layers: int = 3
    features: int = 3
    draft_vocab_size: int = 8192
    mask_token_id: int = 16
    max_tokens: int = 640
    anchors: int = 64
    sequences_per_step: int = 3
    learning_rate: float = 6e-4
    warmup_share: float = 0.04
    decay: float = 4.0
    teacher_share: float = 0.5
    masked_shares: tuple[float, float, float] = (0.5, 0.25, 0.25)


class Trainer:
    """The training loop and its state."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe) -> None:
        self.recipe, self.run, self.start = recipe, args.run, args.start
        self.device = torch.device(args.device)
        spec = ModelSpec(args.verifier, device=args.device)
        layers = load_causal_lm(spec)
        count = layers.config.num_hidden_layers
        self.verifier = Verifier(layers, default_target_layers(count, recipe.features))
        self.store = FeatureStore(args.features or args.run / "features", self.verifier)
        self.train, self.held_out = split(load_corpus(args.corpus, recipe.max_tokens))
        self.rng = torch.Generator().manual_seed(args.seed)
        self.step, self.spent_s, self.budget_s = 0, 0.0, args.minutes * 60.0
        self.model, self.optimizer = self._restore()
        ids = self.model.token_ids()
        self.dtype = spec.torch_dtype  # bfloat16 means mixed precision: the drafter's own weights are float32
        self.embedding: Tensor = self.verifier.model.get_input_embeddings().weight.detach()
        self.head: Tensor = self.verifier.model.get_output_embeddings().weight.detach()[ids]
        self.draft_index = torch.full((self.verifier.vocab_size,), -1, device=self.device)
        self.draft_index[ids] = torch.arange(len(ids), device=self.device)
        self.pending: list[int] = []

    def _restore(self) -> tuple[DFlashModel, torch.optim.Optimizer]:
        """The model and optimiser of the run's checkpoint, or fresh ones."""
        recipe, path = self.recipe, self.run / "checkpoint.pt"
        config = drafter_config(
            self.verifier, recipe.layers, recipe.block, recipe.mask_token_id, recipe.draft_vocab_size
        )
        if path.exists():
            saved = torch.load(path, map_location=self.device, weights_only=True)
            if saved["recipe"] != _plain(recipe):
                raise SystemExit(f"Expected the recipe of {path}, got another one; use a new --run directory")
            model = DFlashModel(config)
            model.load_state_dict(saved["model"])
            self.step, self.spent_s = saved["step"], saved["spent_s"]
            self.rng.set_state(saved["rng"].cpu())
        else:
            model = self._start(config)
        model = model.to(self.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
        if path.exists():
            optimizer.load_state_dict(saved["optimizer"])
        return model, optimizer

    def _start(self, config: DFlashConfig) -> DFlashModel:
        """Finished weights to go on from, or the verifier's last layers."""
        if self.start is not None:
            model = load_dflash(self.start, torch.float32, str(self.device))
            if model.config != config:
                raise SystemExit(f"Expected {self.start} to have the recipe's shape {config}, got {model.config}")
            return model
        ids = frequent_ids(self.train, self.recipe.draft_vocab_size)
        sample = torch.tensor(self.train[0].ids, device=self.device)[None]
        return from_verifier(config, self.verifier, ids, sample)

    def save(self) -> None:
        """Write the checkpoint and the drafter's weights, atomically."""
        state: dict[str, Any] = {
            "recipe": _plain(self.recipe),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "spent_s": self.spent_s,
            "rng": self.rng.get_state(),
        }
        partial = self.run / ".checkpoint.partial"
        torch.save(state, partial)
        partial.replace(self.run / "checkpoint.pt")
        save_dflash(self.model, self.run / "drafter")

    def _rate(self) -> float:
        """Linear warm-up, then a cosine to zero, over the share of the time budget that is spent."""
        done = min(1.0, self.spent_s / self.budget_s)
        if done < self.recipe.warmup_share:
            return float(self.recipe.learning_rate * max(0.02, done / self.recipe.warmup_share))
        progress = (done - self.recipe.warmup_share) / (1.0 - self.recipe.warmup_share)
        return float(self.recipe.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress)))

    def _next_sequence(self) -> TrainingSequence:
        if not self.pending:
            self.pending = torch.randperm(len(self.train), generator=self.rng).tolist()
        return self.train[self.pending.pop()]

    def _sequence_loss(self, sequence: TrainingSequence) -> tuple[Tensor, int]:
        """The loss of one sequence's blocks, and how many blocks there were."""
        recipe = self.recipe
        ids = torch.tensor(sequence.ids)
        blocks = sample_blocks(ids, sequence.prompt_len, recipe.block, recipe.anchors, recipe.masked_shares, self.rng)
        blocks = type(blocks)(*(t.to(self.device) for t in vars(blocks).values()))
        features, final = (t.to(self.device, self.dtype) for t in self.store.get(sequence))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            with torch.no_grad():
                teacher = (final @ self.head.T).float().log_softmax(dim=-1)  # [S, V_d]
            fed = blocks.ids.masked_fill(blocks.masked, self.model.config.mask_token_id)
            embedded = nn.functional.embedding(fed, self.embedding)
            hidden = block_hidden(self.model, embedded, blocks.anchors, features)
            logits = hidden[blocks.scored] @ self.head.T
        loss = block_loss(logits, blocks, teacher, self.draft_index, recipe.decay, recipe.teacher_share)
        return loss, len(blocks.anchors)

    def train_step(self) -> tuple[float, int]:
        """One optimiser step; the mean loss and the number of blocks."""
        started, total, count = time.perf_counter(), 0.0, 0
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        for _ in range(self.recipe.sequences_per_step):
            loss, blocks = self._sequence_loss(self._next_sequence())
            (loss / self.recipe.sequences_per_step).backward()
            total, count = total + float(loss.detach()), count + blocks
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.spent_s += time.perf_counter() - started
        return total / self.recipe.sequences_per_step, count

    def evaluate(self) -> dict[str, dict[int, float]]:
        """Held-out acceptance at 1, 2 and 4 passes."""
        by_kind: dict[str, list[TrainingSequence]] = {}
        for sequence in self.held_out:
            by_kind.setdefault(sequence.kind, []).append(sequence)
        chosen = [s for group in by_kind.values() for s in group[:24]]
        return held_out_acceptance(self.model, self.embedding, self.head, self.store, chosen, (1, 2, 4))

    def log(self, record: dict[str, Any]) -> None:
        """Append a line of metrics."""
        with (self.run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


def _plain(recipe: Recipe) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(recipe).items()}


def run_training(trainer: Trainer, save_every_s: float, evaluate_every_s: float) -> None:
    """Train until the budget is spent: step, then now and then save and evaluate."""
    bar = tqdm(total=round(trainer.budget_s), initial=round(trainer.spent_s), unit="s", file=sys.stderr)
    saved = evaluated = trainer.spent_s
    loss_average, blocks, since = 0.0, 0, trainer.spent_s
    while trainer.spent_s < trainer.budget_s:
        loss, count = trainer.train_step()
        loss_average = loss if loss_average == 0.0 else 0.98 * loss_average + 0.02 * loss
        blocks += count
        bar.n = min(round(trainer.spent_s), round(trainer.budget_s))
        bar.set_postfix(step=trainer.step, loss=f"{loss_average:.3f}")
        if trainer.spent_s - evaluated >= evaluate_every_s or trainer.spent_s >= trainer.budget_s:
            evaluated = trainer.spent_s
            rate = blocks / max(1e-9, trainer.spent_s - since)
            record = {
                "step": trainer.step,
                "spent_s": round(trainer.spent_s),
                "loss": loss_average,
                "blocks_per_s": rate,
            }
            trainer.log(record | {"mean_acceptance_length": trainer.evaluate()})
            blocks, since = 0, trainer.spent_s
        if trainer.spent_s - saved >= save_every_s or trainer.spent_s >= trainer.budget_s:
            saved = trainer.spent_s
            trainer.save()
    bar.close()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="directory of checkpoint, metrics and weights")
    parser.add_argument("--features", type=Path, help="feature cache (default: in the run's directory)")
    parser.add_argument("--features-only", action="store_true", help="only fill the feature cache, then stop")
    parser.add_argument("--minutes", type=float, default=120.0, help="time budget of the whole run")
    parser.add_argument("--start", type=Path, help="drafter directory whose weights a new run starts from")
    parser.add_argument("--learning-rate", type=float, default=Recipe.learning_rate, help="peak (default: %(default)s)")
    parser.add_argument("--verifier", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every-s", type=float, default=300.0)
    parser.add_argument("--evaluate-every-s", type=float, default=600.0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m jobs.train_drafter``."""
    args = _parse(argv)
    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(args, Recipe(learning_rate=args.learning_rate))
    if args.features_only:
        for sequence in tqdm([*trainer.held_out, *trainer.train], unit="sequence", file=sys.stderr):
            trainer.store.get(sequence)
        return 0
    run_training(trainer, args.save_every_s, args.evaluate_every_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
