"""Loading a pair by path, what is refused, and which rooms work without Ray."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MistralConfig, MistralForCausalLM

from cluster.decoding import Effort, Sampling, StopRules
from cluster.messages import Request
from cluster.models.dflash import save_dflash
from cluster.models.loading import ModelError, ModelSpec, fingerprint, load_causal_lm, load_embeddings
from cluster.pair import LocalPair, PairSpec, load_drafter
from tests.cluster.tiny import TEXT_VOCAB, byte_tokenizer, save_pair, tiny_drafter, tiny_drafter_config, tiny_verifier
from tests.cluster.toys import subprocess_environment


def spec(verifier: Path, drafter: Path | None, max_rows: int = 4) -> PairSpec:
    return PairSpec(
        ModelSpec(str(verifier), dtype="float32"),
        None if drafter is None else ModelSpec(str(drafter), dtype="float32"),
        max_rows,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny pair on disk."""
    return save_pair(tmp_path_factory.mktemp("pair"))


def batch(effort: Effort | None) -> list[Request]:
    prompts = ("a", "Hello", "Grüße", "1 + 1 = 2, and so on")
    return [
        Request(f"r{i}", tuple(p.encode()), StopRules(6 + 5 * i), Sampling(0.7 * (i % 2), seed=i), effort)
        for i, p in enumerate(prompts)
    ]


class TestLocalPair:
    def test_drafts_losslessly(self, saved: tuple[Path, Path]) -> None:
        pair = LocalPair(spec(*saved))
        drafted, plain = pair.generate(batch(Effort(6, 2))), pair.generate(batch(None))
        assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]

    def test_completions_come_in_the_order_of_the_requests(self, saved: tuple[Path, Path]) -> None:
        assert [c.request_id for c in LocalPair(spec(*saved)).generate(batch(None)[::-1])] == ["r3", "r2", "r1", "r0"]

    def test_without_a_drafter(self, saved: tuple[Path, Path]) -> None:
        alone = LocalPair(spec(saved[0], None))
        assert [c.token_ids for c in alone.generate(batch(None))] == [
            c.token_ids for c in LocalPair(spec(*saved)).generate(batch(Effort(3)))
        ]

    def test_honours_stop_strings(self, saved: tuple[Path, Path]) -> None:
        pair = LocalPair(spec(*saved))
        (free,) = pair.generate([Request("r", (65, 66), StopRules(20))])
        word = pair.tokenizer.decode(list(free.token_ids[8:9]))
        (cut,) = pair.generate([Request("r", (65, 66), StopRules(20, stop_strings=(word,)), effort=Effort(6))])
        assert cut.finish_reason == "stop"
        assert word in pair.tokenizer.decode(list(cut.token_ids))
        assert cut.token_ids == free.token_ids[: len(cut.token_ids)]

    def test_accounts_for_its_time(self, saved: tuple[Path, Path]) -> None:
        pair = LocalPair(spec(*saved))
        pair.generate(batch(Effort(6)))
        times = pair.times()
        assert times.rounds > 0
        assert min(times.prefill_s, times.draft_s, times.verify_s, times.other_s) >= 0
        assert times.total_s >= times.prefill_s + times.draft_s + times.verify_s


class TestEmbeddings:
    def test_are_those_of_the_model(self, saved: tuple[Path, Path]) -> None:
        config, embedding, head = load_embeddings(ModelSpec(str(saved[0]), dtype="float32"))
        model = tiny_verifier(vocab=TEXT_VOCAB)
        assert config.vocab_size == TEXT_VOCAB
        assert torch.equal(embedding, model.get_input_embeddings().weight)
        assert torch.equal(head, model.lm_head.weight)

    def test_a_tied_head_is_the_embedding(self, tmp_path: Path) -> None:
        tiny_verifier(tied=True, attention="eager").save_pretrained(tmp_path)
        _, embedding, head = load_embeddings(ModelSpec(str(tmp_path), dtype="float32"))
        assert torch.equal(embedding, head)

    def test_sharded_weights(self, tmp_path: Path) -> None:
        tiny_verifier(attention="eager").save_pretrained(tmp_path, max_shard_size="20KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
        _, embedding, head = load_embeddings(ModelSpec(str(tmp_path), dtype="float32"))
        assert torch.equal(embedding, tiny_verifier().get_input_embeddings().weight)
        assert torch.equal(head, tiny_verifier().lm_head.weight)


class TestRefusals:
    def drafter(self, directory: Path, **changes: Any) -> Path:
        shape = {"vocab_size": TEXT_VOCAB, "mask_token_id": 257} | changes
        save_dflash(tiny_drafter(tiny_drafter_config(**shape)), directory, torch.float32)
        return directory

    def test_another_tokenizer_names_the_first_id_that_differs(self, saved: tuple[Path, Path], tmp_path: Path) -> None:
        drafter = self.drafter(tmp_path / "drafter")
        byte_tokenizer(swapped=(70, 90)).save_pretrained(drafter)
        with pytest.raises(ModelError, match=r"got different ones: id 70 is '.' for the drafter and '.' for the verif"):
            load_drafter(ModelSpec(str(drafter), dtype="float32"), ModelSpec(str(saved[0]), dtype="float32"))

    def test_the_same_tokenizer_is_welcome(self, saved: tuple[Path, Path], tmp_path: Path) -> None:
        drafter = self.drafter(tmp_path / "drafter")
        byte_tokenizer().save_pretrained(drafter)
        assert load_drafter(ModelSpec(str(drafter), dtype="float32"), ModelSpec(str(saved[0]), dtype="float32"))

    def test_another_verifiers_drafter(self, saved: tuple[Path, Path], tmp_path: Path) -> None:
        drafter = self.drafter(tmp_path / "drafter", num_target_layers=30)
        with pytest.raises(ModelError, match=r"layers of the verifier 30 \(the verifier has 3\)"):
            LocalPair(spec(saved[0], drafter))

    def test_a_mask_token_that_the_verifier_lacks(self, saved: tuple[Path, Path], tmp_path: Path) -> None:
        drafter = self.drafter(tmp_path / "drafter", mask_token_id=TEXT_VOCAB)
        with pytest.raises(ModelError, match=f"mask token {TEXT_VOCAB} outside the verifier's vocabulary"):
            LocalPair(spec(saved[0], drafter))

    def test_unreadable_verifier_weights(self, saved: tuple[Path, Path], tmp_path: Path) -> None:
        broken = tmp_path / "broken"
        shutil.copytree(saved[0], broken)
        (broken / "model.safetensors").write_bytes(b"not weights")
        with pytest.raises(ModelError, match=r"Expected a readable verifier at .*broken"):
            LocalPair(spec(broken, saved[1]))

    def test_verifier_weights_that_lack_a_tensor(self, saved: tuple[Path, Path], tmp_path: Path) -> None:
        """`transformers` would fill it with random numbers and only warn."""
        broken = tmp_path / "broken"
        shutil.copytree(saved[0], broken)
        state = load_file(broken / "model.safetensors")
        del state["model.layers.1.mlp.up_proj.weight"]
        save_file(state, broken / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
            LocalPair(spec(broken, saved[1]))

    def test_attention_with_a_sliding_window(self, tmp_path: Path) -> None:
        """Ours would see the whole context, and the text would differ from the library's without a word."""
        shape = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
        config = MistralConfig(vocab_size=30, num_hidden_layers=1, sliding_window=8, **shape)
        MistralForCausalLM(config).save_pretrained(tmp_path)
        with pytest.raises(
            ModelError, match=r"Expected a verifier with plain causal attention, got .*sliding_window 8"
        ):
            load_causal_lm(ModelSpec(str(tmp_path), dtype="float32"))

    def test_no_such_model(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no such directory here, so it was taken for a hub id"):
            LocalPair(spec(tmp_path / "nowhere", None))

    def test_an_unknown_dtype(self) -> None:
        with pytest.raises(
            ValueError, match="Expected dtype to be one of auto, float32, bfloat16, float16, got 'int4'"
        ):
            ModelSpec(dtype="int4")


class TestFingerprint:
    def test_depends_on_the_weights_and_on_nothing_else(self, saved: tuple[Path, Path], tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(saved[1], copy)
        assert fingerprint(copy) == fingerprint(saved[1])
        state = load_file(copy / "model.safetensors")
        state["norm.weight"][3] += 1
        save_file(state, copy / "model.safetensors", metadata={"format": "pt"})
        assert fingerprint(copy) != fingerprint(saved[1])


class TestWithoutRay:
    def test_the_local_pair_with_all_below_it_imports_with_ray_blocked(self) -> None:
        below = "cluster.models.demo, cluster.models.drafter, cluster.models.loading, cluster.engine, cluster.pair"
        code = f"import sys; sys.modules['ray'] = None; import {below}"
        subprocess.run([sys.executable, "-c", code], check=True, env=subprocess_environment(), timeout=300)

    def test_decoding_needs_torch_alone(self) -> None:
        code = "import sys; sys.modules['transformers'] = sys.modules['ray'] = None; import cluster.decoding"
        subprocess.run([sys.executable, "-c", code], check=True, env=subprocess_environment(), timeout=300)
