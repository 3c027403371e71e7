"""Drafter training: corpus reading, block masks, the training forward, the loss, and that a tiny run learns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from cluster.models.demo import DRAFTER_DIR
from cluster.models.dflash import DFlashConfig, DFlashModel, load_dflash, save_dflash
from cluster.models.ragged_cache import RaggedCache
from jobs.make_corpus import SCHEMA, Plan, plans
from jobs.train_drafter import main
from jobs.training.blocks import Blocks, block_hidden, block_loss, sample_blocks
from jobs.training.data import frequent_ids, load_corpus, split

THIRDS = (1 / 3, 1 / 3, 1 / 3)


def tiny_config(**changes: int) -> DFlashConfig:
    shape = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 20, "num_target_layers": 4, "block_size": 4,
        "mask_token_id": 0,
    }  # fmt: skip
    return DFlashConfig(**(shape | changes), target_layer_ids=(0, 2))


def write_corpus(directory: Path, rows: list[tuple[list[int], list[int], float]]) -> None:
    table = [
        {"id": str(i), "kind": "chat", "prompt_ids": p, "answer_ids": a, "temperature": t}
        for i, (p, a, t) in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(table, schema=SCHEMA), directory / "chat-000000-2.parquet")


class TestCorpus:
    def test_sequences_are_cut_deduplicated_and_know_whether_they_are_greedy(self, tmp_path: Path) -> None:
        write_corpus(tmp_path, [([1, 2], [3, 4, 5, 6], 0.0), ([1, 2], [3, 4, 5, 6], 0.0), ([1], [7, 8, 9], 0.7)])
        found = {s.ids: s for s in load_corpus(tmp_path, max_tokens=5)}
        assert set(found) == {(1, 2, 3, 4, 5), (1, 7, 8, 9)}
        assert [found[1, 2, 3, 4, 5].greedy, found[1, 7, 8, 9].greedy] == [True, False]

    def test_an_empty_corpus_is_an_error_that_says_how_to_make_one(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="make_corpus"):
            load_corpus(tmp_path, 100)

    def test_held_out_sequences_are_a_small_fixed_share(self, tmp_path: Path) -> None:
        write_corpus(tmp_path, [([i, i % 97], [i, 5, 6, 7], 0.0) for i in range(2000)])
        train, held_out = split(load_corpus(tmp_path, 100))
        assert len(train) + len(held_out) == 2000
        assert 15 <= len(held_out) <= 70  # 40 expected; 1e-4 tails of a binomial

    def test_the_draft_vocabulary_prefers_answers(self, tmp_path: Path) -> None:
        write_corpus(tmp_path, [([9, 9, 9], [3, 4, 4, 5], 0.0)])
        assert frequent_ids(load_corpus(tmp_path, 100), 4).tolist() == [3, 4, 5, 9]

    def test_parts_cover_every_sequence_once_and_mix_the_kinds(self) -> None:
        made = plans({"chat": 5, "code": 4}, part=2)
        assert made[:2] == [Plan("chat", 0, 2), Plan("code", 0, 2)]
        assert sorted((p.kind, i) for p in made for i in range(p.first, p.first + p.count)) == [
            *(("chat", i) for i in range(5)),
            *(("code", i) for i in range(4)),
        ]


class TestSampleBlocks:
    def blocks(self, shares: tuple[float, float, float]) -> Blocks:
        ids = torch.arange(10, 40)
        return sample_blocks(ids, 10, 4, 64, shares, torch.Generator().manual_seed(1))

    def test_anchors_lie_in_the_answer_with_a_token_after_them(self) -> None:
        anchors = self.blocks(THIRDS).anchors
        assert sorted(anchors.tolist()) == list(range(10, 29))

    def test_ids_are_the_sequence_from_the_anchor_on(self) -> None:
        blocks = self.blocks(THIRDS)
        inside = blocks.anchors + 4 < 30
        assert (blocks.ids - blocks.ids[:, :1])[inside].tolist() == [[0, 1, 2, 3, 4]] * int(inside.sum())

    def test_slots_beyond_the_end_have_no_loss_and_the_anchor_is_never_masked(self) -> None:
        blocks = self.blocks(THIRDS)
        beyond = blocks.anchors[:, None] + torch.arange(5) >= 30
        assert not (blocks.scored & beyond).any()
        assert not blocks.masked[:, 0].any()

    def test_every_block_keeps_a_masked_slot(self) -> None:
        assert self.blocks(THIRDS).masked.any(dim=1).all()

    def test_the_three_kinds(self) -> None:
        assert self.blocks((1.0, 0.0, 0.0)).masked[:, 1:].all()
        prefix = self.blocks((0.0, 1.0, 0.0)).masked[:, 1:].long()
        assert (prefix.diff(dim=1) >= 0).all()  # revealed first, then masked
        assert (~self.blocks((0.0, 0.0, 1.0)).masked[:, 1:]).any()


class TestBlockHidden:
    def test_equals_the_drafters_own_attention_over_its_cache(self) -> None:
        torch.manual_seed(0)
        model = DFlashModel(tiny_config()).eval()
        features, embedded, anchors = torch.randn(9, 32), torch.randn(2, 5, 16), torch.tensor([3, 7])
        got = block_hidden(model, embedded, anchors, features)
        for row, anchor in enumerate(anchors.tolist()):
            cache = RaggedCache(2, torch.float32, torch.device("cpu"))
            positions = torch.arange(anchor)[None]
            cache.window(0, positions, anchor)
            for layer, pair in enumerate(model.context(features[None, :anchor], positions)):
                cache.update(*pair, layer)
            block = torch.arange(anchor, anchor + 5)[None]
            cache.window(0, block, anchor + 5)

            def attend(
                layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: RaggedCache = cache
            ) -> torch.Tensor:
                keys, values = (t.repeat_interleave(2, dim=1) for t in cache.update(key, value, layer))
                out = nn.functional.scaled_dot_product_attention(query, keys, values)
                return out.transpose(1, 2)

            assert torch.allclose(got[row], model(embedded[row : row + 1], block, attend)[0], atol=1e-5)

    def test_no_gradient_reaches_a_block_from_another(self) -> None:
        model = DFlashModel(tiny_config())
        embedded = torch.randn(2, 5, 16, requires_grad=True)
        block_hidden(model, embedded, torch.tensor([3, 4]), torch.randn(9, 32))[0].sum().backward()
        assert embedded.grad is not None
        assert embedded.grad[0].abs().sum() > 0
        assert embedded.grad[1].abs().sum() == 0

    def test_features_from_the_anchor_on_are_not_seen(self) -> None:
        model = DFlashModel(tiny_config())
        features = torch.randn(9, 32, requires_grad=True)
        block_hidden(model, torch.randn(1, 5, 16), torch.tensor([4]), features).sum().backward()
        assert features.grad is not None
        assert features.grad[4:].abs().sum() == 0
        assert (features.grad[:4].abs().sum(dim=1) > 0).all()


class TestBlockLoss:
    blocks = Blocks(
        anchors=torch.tensor([2]),
        ids=torch.tensor([[5, 6, 7]]),
        masked=torch.tensor([[False, True, True]]),
        scored=torch.tensor([[False, True, True]]),
    )

    def test_is_the_weighted_cross_entropy_written_out(self) -> None:
        logits = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
        index = torch.full((8,), -1)
        index[6], index[7] = 0, 1
        teacher = torch.full((6, 2), 0.5).log()
        law = logits.log_softmax(dim=-1)
        hard = torch.stack([-law[0, 0], -law[1, 1]])
        weight = torch.tensor([1.0, float(torch.exp(torch.tensor(-0.25)))])
        expected = (hard * weight).sum() / weight.sum()
        assert torch.allclose(block_loss(logits, self.blocks, teacher, index, decay=4.0, teacher_share=0.0), expected)
        soft = (-(0.5 * law).sum(dim=1) * weight).sum() / weight.sum()
        assert torch.allclose(block_loss(logits, self.blocks, teacher, index, decay=4.0, teacher_share=1.0), soft)

    def test_a_token_outside_the_draft_vocabulary_leaves_only_the_teacher(self) -> None:
        logits, teacher = torch.zeros(2, 2), torch.full((6, 2), 0.5).log()
        loss = block_loss(logits, self.blocks, teacher, torch.full((8,), -1), decay=4.0, teacher_share=0.5)
        assert torch.allclose(loss, 0.5 * torch.tensor(2.0).log())


def test_a_tiny_drafter_learns_a_sequence_by_heart() -> None:
    torch.manual_seed(0)
    model = DFlashModel(tiny_config())
    embedding, head = torch.randn(20, 16), torch.randn(20, 16)
    ids = torch.randint(1, 20, (24,), generator=torch.Generator().manual_seed(3))
    features, rng = torch.randn(24, 32), torch.Generator().manual_seed(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    teacher, index, losses = torch.full((24, 20), 1 / 20).log(), torch.arange(20), []
    for _ in range(120):
        blocks = sample_blocks(ids, 4, 3, 16, THIRDS, rng)
        fed = nn.functional.embedding(blocks.ids.masked_fill(blocks.masked, 0), embedding)
        logits = block_hidden(model, fed, blocks.anchors, features)[blocks.scored] @ head.T
        loss = block_loss(logits, blocks, teacher, index, decay=4.0, teacher_share=0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.slow
def test_training_goes_on_from_finished_weights_and_resumes_its_own_checkpoint(tmp_path: Path) -> None:
    """The real verifier and drafter, a few steps."""
    tokens = list(range(100, 130))
    write_corpus(tmp_path, [(tokens[i : i + 4], tokens[i + 4 :], 0.0) for i in range(12)])
    run = tmp_path / "run"
    command = ["--corpus", str(tmp_path), "--run", str(run), "--learning-rate", "1e-4"]
    assert main([*command, "--start", str(DRAFTER_DIR), "--minutes", "0.02"]) == 0
    first = torch.load(run / "checkpoint.pt", weights_only=True)
    published = load_dflash(DRAFTER_DIR, torch.float32)
    moved = load_dflash(run / "drafter", torch.float32)
    assert torch.equal(moved.d2t, published.d2t)
    assert 0 < float((moved.fc.weight - published.fc.weight).detach().abs().max()) < 0.01  # near the start, not at it
    assert main([*command, "--minutes", str(first["spent_s"] / 60 + 0.02)]) == 0
    assert torch.load(run / "checkpoint.pt", weights_only=True)["step"] > first["step"] > 0
    with pytest.raises(SystemExit, match="another one"):
        main([*command[:4], "--minutes", "0.04"])


@pytest.mark.slow
def test_finished_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path, [([1, 2, 3], list(range(100 + i, 120 + i)), 0.0) for i in range(12)])
    save_dflash(DFlashModel(tiny_config()), tmp_path / "tiny")
    with pytest.raises(SystemExit, match="to have the recipe's shape"):
        main(["--corpus", str(tmp_path), "--run", str(tmp_path / "run"), "--start", str(tmp_path / "tiny")])
