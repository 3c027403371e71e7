"""The verifier over tiny transformers: the same numbers as plain forwards, whatever shares the cache."""

import pytest
import torch
from torch import Tensor

from cluster.models.verifier import Verifier
from tests.cluster.tiny import FEATURE_LAYERS, HIDDEN, VOCAB, Family, tiny_verifier

FAMILIES: tuple[Family, ...] = ("llama", "qwen3")


def tokens(length: int, seed: int) -> Tensor:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


def plain_logits(family: Family, ids: Tensor) -> Tensor:
    """``[T, V]`` of a plain forward of the unchanged library."""
    with torch.inference_mode():
        logits: Tensor = tiny_verifier(family, attention="eager")(ids[None]).logits[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
class TestForward:
    def test_logits_equal_a_plain_forward(self, family: Family) -> None:
        ids = tokens(17, 1)
        logits, _ = Verifier(tiny_verifier(family)).forward(ids[None], torch.tensor([0]))
        assert torch.allclose(logits[0], plain_logits(family, ids), atol=1e-5)

    def test_chunks_equal_a_plain_forward(self, family: Family) -> None:
        ids, verifier = tokens(17, 1), Verifier(tiny_verifier(family))
        parts = [verifier.forward(ids[None, a:b], torch.tensor([a]))[0] for a, b in ((0, 5), (5, 6), (6, 17))]
        assert torch.allclose(torch.cat(parts, dim=1)[0], plain_logits(family, ids), atol=1e-5)

    def test_only_the_last_logits_on_request(self, family: Family) -> None:
        ids = tokens(9, 2)
        logits, features = Verifier(tiny_verifier(family), [0]).forward(ids[None], torch.tensor([0]), logits_to_keep=1)
        assert logits.shape == (1, 1, VOCAB)
        assert features.shape == (1, 9, HIDDEN)
        assert torch.allclose(logits[0, 0], plain_logits(family, ids)[-1], atol=1e-5)

    def test_features_are_the_hidden_states_after_their_layers(self, family: Family) -> None:
        ids = tokens(9, 2)
        _, features = Verifier(tiny_verifier(family), FEATURE_LAYERS).forward(ids[None], torch.tensor([0]))
        with torch.inference_mode():
            states = tiny_verifier(family, attention="eager")(ids[None], output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer + 1] for layer in FEATURE_LAYERS], dim=-1)
        assert torch.allclose(features, expected, atol=1e-5)

    def test_encode_equals_forward(self, family: Family) -> None:
        ids, verifier = torch.stack([tokens(9, 2), tokens(9, 3)]), Verifier(tiny_verifier(family), FEATURE_LAYERS)
        features, hidden = verifier.encode(ids)
        logits, cached = verifier.forward(ids, torch.tensor([0, 0]))
        assert torch.allclose(features, cached, atol=1e-5)
        assert torch.allclose(hidden @ verifier.model.lm_head.weight.T.detach(), logits, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
class TestRaggedRollback:
    """Case 8: blocks of 3 of which 0, 3 and 2 are accepted, for several rounds, over rows of different lengths."""

    WIDTH = 3

    def test_every_row_equals_its_solo_run_after_garbage(self, family: Family) -> None:
        verifier = Verifier(tiny_verifier(family), FEATURE_LAYERS)
        texts = [tokens(60, seed) for seed in (10, 11, 12)]
        lengths = [4, 9, 1]
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            verifier.forward(text[None, :length], torch.tensor([0]), first_row=row)
        for step, accepts in enumerate([(0, 3, 2), (3, 2, 0), (2, 0, 3), (0, 0, 0), (3, 3, 3)]):
            garbage = tokens(3 * self.WIDTH, 100 + step).view(3, self.WIDTH)
            block = torch.stack(
                [
                    torch.cat([text[n : n + 1 + a], g[a:]])
                    for text, n, a, g in zip(texts, lengths, accepts, garbage, strict=True)
                ]
            )
            logits, features = verifier.forward(block, torch.tensor(lengths))
            for row, (text, n, accepted) in enumerate(zip(texts, lengths, accepts, strict=True)):
                solo = plain_logits(family, text[: n + 1 + accepted])
                assert torch.allclose(logits[row, : accepted + 1], solo[n:], atol=1e-5)
            alone = verifier.encode(texts[0][None, : lengths[0] + accepts[0] + 1])[0]
            assert torch.allclose(features[0, : accepts[0] + 1], alone[0, lengths[0] :], atol=1e-5)
            lengths = [n + 1 + a for n, a in zip(lengths, accepts, strict=True)]

    def test_a_moved_row_goes_on_as_before(self, family: Family) -> None:
        verifier, texts = Verifier(tiny_verifier(family)), [tokens(20, seed) for seed in (10, 11, 12)]
        for row, text in enumerate(texts):
            verifier.forward(text[None, :8], torch.tensor([0]), first_row=row)
        verifier.cache.move_row(2, 0)
        logits, _ = verifier.forward(torch.stack([texts[2][8:12], texts[1][8:12]]), torch.tensor([8, 8]))
        assert torch.allclose(logits[0], plain_logits(family, texts[2][:12])[8:], atol=1e-5)
        assert torch.allclose(logits[1], plain_logits(family, texts[1][:12])[8:], atol=1e-5)

    def test_growing_past_the_first_step_of_capacity_keeps_the_context(self, family: Family) -> None:
        verifier, text = Verifier(tiny_verifier(family)), tokens(140, 3)
        verifier.forward(text[None, :120], torch.tensor([0]))
        logits, _ = verifier.forward(text[None, 120:], torch.tensor([120]))
        assert torch.allclose(logits[0], plain_logits(family, text)[120:], atol=1e-5)


class TestConstruction:
    @pytest.mark.parametrize("layer", [-1, 3])
    def test_a_feature_layer_that_does_not_exist(self, layer: int) -> None:
        with pytest.raises(ValueError, match=rf"Expected feature layers in 0 .. 2, got \[{layer}\]"):
            Verifier(tiny_verifier(), [0, layer])

    def test_sizes(self) -> None:
        verifier = Verifier(tiny_verifier(context=77), FEATURE_LAYERS)
        assert (verifier.vocab_size, verifier.context_tokens, verifier.feature_size) == (VOCAB, 77, 2 * HIDDEN)
