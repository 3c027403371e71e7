"""The DFlash drafter: its checkpoint layout, and cached drafting against an uncached computation."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cluster.decoding import Effort, Sampling
from cluster.messages import ContextUpdate, DraftCall, RowMove
from cluster.models.dflash import (
    CheckpointError,
    DFlashConfig,
    DFlashModel,
    default_target_layers,
    load_dflash,
    read_config,
    save_dflash,
)
from cluster.models.drafter import BlockDrafter
from jobs.training.blocks import block_hidden
from tests.cluster.tiny import HIDDEN, VOCAB, tiny_drafter, tiny_drafter_config

FEATURES = 2 * HIDDEN
LAYER_TENSORS = {
    "self_attn.q_proj.weight": (32, 32),
    "self_attn.k_proj.weight": (16, 32),
    "self_attn.v_proj.weight": (16, 32),
    "self_attn.o_proj.weight": (32, 32),
    "self_attn.q_norm.weight": (8,),
    "self_attn.k_norm.weight": (8,),
    "mlp.gate_proj.weight": (40, 32),
    "mlp.up_proj.weight": (40, 32),
    "mlp.down_proj.weight": (32, 40),
    "input_layernorm.weight": (32,),
    "post_attention_layernorm.weight": (32,),
}
PUBLIC_LAYOUT = {
    "fc.weight": (32, 64),
    "hidden_norm.weight": (32,),
    "norm.weight": (32,),
    **{f"layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER_TENSORS.items()},
}


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def embeddings() -> tuple[Tensor, Tensor]:
    """A verifier's token embedding and head."""
    return draw(5, VOCAB, HIDDEN), 0.2 * draw(6, VOCAB, HIDDEN)


class TestLayout:
    def test_tensor_names_and_shapes_are_those_of_the_public_package(self) -> None:
        assert {name: tuple(t.shape) for name, t in tiny_drafter().state_dict().items()} == PUBLIC_LAYOUT

    def test_a_reduced_vocabulary_adds_one_tensor(self) -> None:
        names = tiny_drafter(tiny_drafter_config(draft_vocab_size=9)).state_dict().keys()
        assert names - PUBLIC_LAYOUT.keys() == {"d2t"}

    def test_d2t_holds_offsets(self) -> None:
        model = tiny_drafter(tiny_drafter_config(draft_vocab_size=4), torch.tensor([0, 2, 2, 50]))
        assert model.token_ids().tolist() == [0, 3, 4, 53]

    def test_the_full_vocabulary_drafts_its_own_ids(self) -> None:
        assert tiny_drafter().token_ids().tolist() == list(range(VOCAB))

    @pytest.mark.parametrize(
        ("target_layers", "count", "expected"),
        [(36, 5, (1, 9, 17, 25, 33)), (30, 3, (1, 14, 27)), (28, 1, (14,)), (36, 2, (1, 33))],
    )
    def test_default_feature_layers(self, target_layers: int, count: int, expected: tuple[int, ...]) -> None:
        assert default_target_layers(target_layers, count) == expected


class TestConfig:
    def raw(self, **changes: Any) -> dict[str, Any]:
        return tiny_drafter_config().to_json() | changes

    @pytest.mark.parametrize("config", [tiny_drafter_config(), tiny_drafter_config(draft_vocab_size=9, rope_theta=7e5)])
    def test_survives_its_json(self, config: DFlashConfig) -> None:
        assert DFlashConfig.from_json(json.loads(json.dumps(config.to_json()))) == config

    def test_reads_the_older_rope_fields(self) -> None:
        raw = self.raw(rope_theta=5e5, rope_scaling=None)
        del raw["rope_parameters"]
        assert DFlashConfig.from_json(raw).rope_theta == 5e5

    def test_fills_in_default_feature_layers(self) -> None:
        raw = self.raw(num_target_layers=30, num_hidden_layers=3)
        del raw["dflash_config"]["target_layer_ids"]
        assert DFlashConfig.from_json(raw).target_layer_ids == (1, 14, 27)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"attention_bias": True}, "attention_bias=True"),
            ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
            ({"is_causal": True}, "is_causal=True"),
            ({"use_sliding_window": True}, "use_sliding_window=True"),
            ({"layer_types": ["full_attention", "sliding_attention"]}, "layer type 'sliding_attention'"),
            ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope type 'yarn'"),
            ({"dflash_config": {"mask_token_id": 1, "selector_rank": 8}}, "selector_rank=8"),
            ({"dflash_config": {"mask_token_id": 1, "final_logit_softcapping": 30.0}}, "final_logit_softcapping=30.0"),
        ],
    )
    def test_refuses_what_it_would_get_wrong(self, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(CheckpointError, match=f"Expected a plain DFlash drafter, got {named}, which is not supp"):
            DFlashConfig.from_json(self.raw(**changes))

    def test_names_every_missing_key(self) -> None:
        raw = self.raw()
        del raw["head_dim"], raw["block_size"]
        with pytest.raises(CheckpointError, match=r"Expected block_size, head_dim in the drafter's config\.json"):
            DFlashConfig.from_json(raw)

    @pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"dflash_config": 3}'])
    def test_an_unreadable_file(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match="Expected"):
            read_config(tmp_path)


class TestCheckpoint:
    @pytest.mark.parametrize("reduced", [False, True])
    def test_round_trip(self, reduced: bool, tmp_path: Path) -> None:
        config = tiny_drafter_config(draft_vocab_size=4 if reduced else None)
        model = tiny_drafter(config, torch.tensor([0, 2, 2, 50]) if reduced else None)
        save_dflash(model, tmp_path, torch.float32)
        again = load_dflash(tmp_path, torch.float32)
        assert again.config == config
        assert again.state_dict().keys() == model.state_dict().keys()
        assert all(torch.equal(again.state_dict()[n], t) for n, t in model.state_dict().items())

    def test_is_saved_in_bfloat16_unless_told(self, tmp_path: Path) -> None:
        save_dflash(tiny_drafter(tiny_drafter_config(draft_vocab_size=4), torch.arange(4)), tmp_path)
        dtypes = {n: t.dtype for n, t in load_file(tmp_path / "model.safetensors").items()}
        assert dtypes.pop("d2t") == torch.int64
        assert set(dtypes.values()) == {torch.bfloat16}

    def test_leaves_nothing_but_the_two_files(self, tmp_path: Path) -> None:
        save_dflash(tiny_drafter(), tmp_path)
        save_dflash(tiny_drafter(), tmp_path)
        assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}

    def test_a_d2t_that_the_config_does_not_mention(self, tmp_path: Path) -> None:
        """Public speculators checkpoints have it in the weights alone."""
        save_dflash(tiny_drafter(), tmp_path, torch.float32)
        state = load_file(tmp_path / "model.safetensors") | {"d2t": torch.tensor([1, 1, 4])}
        save_file(state, tmp_path / "model.safetensors")
        assert load_dflash(tmp_path, torch.float32).token_ids().tolist() == [1, 2, 6]

    def test_weights_in_several_files(self, tmp_path: Path) -> None:
        save_dflash(tiny_drafter(), tmp_path, torch.float32)
        state = load_file(tmp_path / "model.safetensors")
        (tmp_path / "model.safetensors").unlink()
        names = sorted(state)
        for part, some in enumerate((names[:9], names[9:])):
            save_file({n: state[n] for n in some}, tmp_path / f"model-{part}.safetensors")
        assert torch.equal(load_dflash(tmp_path, torch.float32).fc.weight, state["fc.weight"])

    def test_every_wrong_tensor_is_listed(self, tmp_path: Path) -> None:
        save_dflash(tiny_drafter(), tmp_path, torch.float32)
        state = load_file(tmp_path / "model.safetensors")
        del state["norm.weight"]
        state["extra.weight"], state["fc.weight"] = torch.zeros(1), torch.zeros(3, 2)
        save_file(state, tmp_path / "model.safetensors")
        message = (
            r"missing norm\.weight; unexpected extra\.weight; "
            r"fc\.weight of shape \(3, 2\) instead of \(32, 64\)"
        )
        with pytest.raises(CheckpointError, match=message):
            load_dflash(tmp_path, torch.float32)

    def test_a_file_cut_short(self, tmp_path: Path) -> None:
        save_dflash(tiny_drafter(), tmp_path)
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:500])
        with pytest.raises(CheckpointError, match="Expected a readable drafter checkpoint at"):
            load_dflash(tmp_path, torch.float32)

    def test_no_weights(self, tmp_path: Path) -> None:
        save_dflash(tiny_drafter(), tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"Expected \*\.safetensors files in"):
            load_dflash(tmp_path, torch.float32)

    def test_no_directory(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="Expected a readable drafter checkpoint at"):
            load_dflash(tmp_path / "nowhere", torch.float32)


def uncached_logits(drafter: BlockDrafter, features: Tensor, ids: Tensor) -> Tensor:
    """One block ``ids [K + 1]`` after a context of ``features [S, F]``, computed at once: ``[K, V_d]``."""
    embedding, head = embeddings()
    embedded = nn.functional.embedding(ids, embedding)[None]
    hidden = block_hidden(drafter.model, embedded, torch.tensor([features.shape[0]]), features)
    return (hidden[0, 1:] @ head[drafter.token_ids].T).detach()


class Probe:
    """A drafter whose passes are recorded: what was fed, and the logits that came out."""

    def __init__(self, model: DFlashModel) -> None:
        self.drafter = BlockDrafter(model, *embeddings())
        self.passes: list[tuple[Tensor, Tensor]] = []
        inner = self.drafter._forward

        def recorded(anchors: Tensor, *where: Tensor) -> Tensor:
            logits = inner(anchors, *where)
            self.passes.append((torch.cat([anchors[:, None], where[-1]], dim=1), logits))
            return logits

        self.drafter._forward = recorded  # type: ignore[method-assign]

    def check(self, call: DraftCall, contexts: list[Tensor]) -> None:
        """Draft, and compare every pass of every row with the uncached computation."""
        self.passes.clear()
        self.drafter.draft(call)
        for ids, logits in self.passes:
            for b, (features, length) in enumerate(zip(contexts, call.lengths, strict=True)):
                if length:
                    expected = uncached_logits(self.drafter, features, ids[b, : length + 1])
                    assert torch.allclose(logits[b, :length], expected, atol=1e-5)


def call_for(
    journal: list[ContextUpdate | RowMove],
    contexts: list[Tensor],
    lengths: list[int],
    efforts: list[Effort],
    samplings: list[Sampling] | None = None,
) -> DraftCall:
    """A draft call whose anchors follow the contexts."""
    positions = tuple(c.shape[0] for c in contexts)
    anchors = tuple((7 * p + 3 * b) % VOCAB for b, p in enumerate(positions))
    samplings = samplings or [Sampling()] * len(contexts)
    return DraftCall(tuple(journal), anchors, positions, tuple(lengths), tuple(samplings), tuple(efforts))


class TestCachedDrafting:
    """Ragged rows over several rounds, with garbage beyond what was committed, against one uncached forward each."""

    EFFORTS = (Effort(6, 1), Effort(6, 3), Effort(6, 6, "left_to_right"))

    def prefill(self, contexts: list[Tensor]) -> list[ContextUpdate | RowMove]:
        return [ContextUpdate(b, (0,), c[None]) for b, c in enumerate(contexts)]

    def rounds(self, probe: Probe, lengths: list[int], count: int = 4) -> None:
        contexts = [draw(20 + b, n, FEATURES) for b, n in enumerate((3, 11, 6))]
        journal = self.prefill(contexts)
        for step in range(count):
            probe.check(call_for(journal, contexts, lengths, list(self.EFFORTS)), contexts)
            window = draw(50 + step, 3, max(lengths) + 1, FEATURES)
            journal = [ContextUpdate(0, tuple(c.shape[0] for c in contexts), window)]
            kept = [(step + 2 * b) % (n + 1) + 1 for b, n in enumerate(lengths)]  # the rest of the window is garbage
            contexts = [torch.cat([c, window[b, : kept[b]]]) for b, c in enumerate(contexts)]

    def test_rounds_of_full_blocks(self) -> None:
        self.rounds(Probe(tiny_drafter()), [6, 6, 6])

    def test_rounds_of_blocks_of_different_lengths(self) -> None:
        """A row's draft must not see the empty slots that a longer neighbour brings."""
        self.rounds(Probe(tiny_drafter()), [2, 6, 4])

    def test_rows_without_a_draft_in_between(self) -> None:
        self.rounds(Probe(tiny_drafter()), [6, 0, 3])

    def test_a_reduced_vocabulary(self) -> None:
        model = tiny_drafter(tiny_drafter_config(draft_vocab_size=5), torch.tensor([0, 2, 2, 20, 50]))
        self.rounds(Probe(model), [6, 6, 6], count=2)

    def test_a_prompt_in_chunks(self) -> None:
        probe, context = Probe(tiny_drafter()), draw(1, 9, FEATURES)
        journal: list[ContextUpdate | RowMove] = [
            ContextUpdate(0, (a,), context[None, a:b]) for a, b in ((0, 4), (4, 8), (8, 9))
        ]
        probe.check(call_for(journal, [context], [6], [Effort(6, 2)]), [context])

    def test_a_moved_row_takes_its_context_along(self) -> None:
        probe = Probe(tiny_drafter())
        contexts = [draw(20 + b, n, FEATURES) for b, n in enumerate((3, 11, 6))]
        probe.check(call_for(self.prefill(contexts), contexts, [6, 6, 6], list(self.EFFORTS)), contexts)
        left = [contexts[2], contexts[1]]
        probe.check(call_for([RowMove(2, 0)], left, [6, 6], list(self.EFFORTS[:2])), left)

    def test_a_new_row_in_a_used_slot(self) -> None:
        probe, old, new = Probe(tiny_drafter()), draw(1, 15, FEATURES), draw(2, 4, FEATURES)
        probe.check(call_for(self.prefill([old]), [old], [6], [Effort(6)]), [old])
        probe.check(call_for(self.prefill([new]), [new], [6], [Effort(6, 2)]), [new])

    def test_features_that_are_not_finite_do_not_outlive_their_row(self) -> None:
        """A failed request leaves NaN features; the row that takes its slot must not see them."""
        probe, good = Probe(tiny_drafter()), [draw(1, 20, FEATURES), draw(2, 4, FEATURES)]
        journal = self.prefill([good[0], torch.full((15, FEATURES), float("nan"))])
        journal.append(ContextUpdate(1, (0,), good[1][None]))
        probe.check(call_for(journal, good, [6, 6], [Effort(6)] * 2), good)


class TestDraft:
    def drafter(self, **changes: Any) -> BlockDrafter:
        return BlockDrafter(tiny_drafter(tiny_drafter_config(**changes)), *embeddings())

    def call(self, lengths: list[int], efforts: list[Effort], samplings: list[Sampling] | None = None) -> DraftCall:
        contexts = [draw(20 + b, 4 + b, FEATURES) for b in range(len(lengths))]
        journal: list[ContextUpdate | RowMove] = [ContextUpdate(b, (0,), c[None]) for b, c in enumerate(contexts)]
        return call_for(journal, contexts, lengths, efforts, samplings)

    def test_replies_with_as_many_tokens_as_asked(self) -> None:
        reply = self.drafter().draft(self.call([0, 3, 6], [Effort(6, 6)] * 3))
        assert [len(t) for t in reply.tokens] == [0, 3, 6]
        assert reply.forwards == (0, 3, 6)

    def test_a_row_is_drafted_as_if_alone(self) -> None:
        efforts, samplings = [Effort(6, 2), Effort(6, 6), Effort(6)], [Sampling(1.0, seed=s) for s in range(3)]
        call = self.call([2, 6, 4], efforts, samplings)
        together = self.drafter().draft(call)
        for b in range(3):
            journal = (dataclasses.replace(call.journal[b], first_row=0),)  # type: ignore[type-var]
            rows = {
                name: getattr(call, name)[b : b + 1]
                for name in ("anchors", "anchor_positions", "lengths", "samplings", "efforts")
            }
            alone = self.drafter().draft(DraftCall(journal, **rows))  # type: ignore[arg-type]
            assert alone.tokens[0] == together.tokens[b]

    def test_the_largest_block_leaves_out_the_anchors_slot(self) -> None:
        assert self.drafter(block_size=7).max_block == 6

    def test_ids_beyond_the_verifiers_head_are_never_drafted(self) -> None:
        """Case 9: a drafter made over a larger padded vocabulary."""
        drafter = self.drafter(vocab_size=VOCAB + 30)
        assert drafter.token_ids.max() < VOCAB
        reply = drafter.draft(self.call([6], [Effort(6)]))
        assert all(t < VOCAB for t in reply.tokens[0])
