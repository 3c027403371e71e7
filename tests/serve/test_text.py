"""Tokens to text: whole characters, whole stop strings, whatever the grouping of the tokens."""

import pytest
from tokenizers import Tokenizer, decoders, models

from serve.text import CharacterStream, DeliveredText
from tests.serve.support import BOS, IM_END, TEXTS, byte_tokenizer, ids_of

TOKENIZER = byte_tokenizer()


def decode(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=True))


def deliver(ids: tuple[int, ...], block: int, stops: tuple[str, ...] = ()) -> list[str]:
    text = DeliveredText(decode, stops, frozenset({IM_END}))
    pieces = [text.push(ids[at : at + block]) for at in range(0, len(ids), block)]
    return [*pieces, text.finish()]


class TestCharacters:
    @pytest.mark.parametrize("text", TEXTS)
    @pytest.mark.parametrize("block", [1, 2, 3, 4, 5, 8])
    def test_pieces_join_to_the_full_decode_and_hold_whole_characters(self, text: str, block: int) -> None:
        pieces = deliver((*ids_of(text), IM_END), block)
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)

    def test_a_character_that_the_end_cuts_short_is_left_out(self) -> None:
        assert "".join(deliver(ids_of("ab界")[:-1], 2)) == "ab"

    @pytest.mark.parametrize("cut", [1, 2, 3])
    def test_bytes_that_are_no_character_stay_visible(self, cut: int) -> None:
        ids = (*ids_of("a🎉")[: 1 + cut], *ids_of("b界"))
        assert "".join(deliver(ids, 1)) == decode(list(ids)) == "a\ufffdb界"

    def test_a_long_run_of_broken_bytes_is_not_held_back(self) -> None:
        broken = ids_of("界")[-1:] * 20
        stream = CharacterStream(decode)
        text = "".join(stream.push(t) for t in (*broken, *ids_of("x")))
        assert text == decode([*broken, *ids_of("x")]) == "\ufffd" * 20 + "x"

    def test_special_tokens_have_no_text(self) -> None:
        assert "".join(deliver((BOS, *ids_of("ab"), BOS, *ids_of("c")), 1)) == "abc"

    def test_byte_fallback_and_leading_spaces(self) -> None:
        """A SentencePiece-like decoder: the first token loses its space, bytes are tokens, broken runs are lost whole."""
        words = ["<unk>", "▁", "▁hello", "▁world", *(f"<0x{b:02X}>" for b in range(256))]
        backend = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], unk_token="<unk>"))
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        ids = [1, 2, 3, *(4 + b for b in "あい🎉".encode()), 3, 1, 2]
        stream = CharacterStream(backend.decode)
        pieces = [stream.push(i) for i in ids]
        assert "".join(pieces) == backend.decode(ids)
        assert not any("\ufffd" in piece for piece in pieces)


class TestStopStrings:
    @pytest.mark.parametrize("block", [1, 2, 3, 4, 6, 20])
    @pytest.mark.parametrize(
        ("text", "stops", "delivered"),
        [
            ("so ENX it END of it", ("END",), "so ENX it "),
            ("aab", ("ab",), "a"),
            ("EN", ("END",), "EN"),
            ("x界🎉y", ("🎉",), "x界"),
            ("one two", ("two", " two"), "one"),
            ("ENEND", ("END", "NEN"), "E"),
        ],
    )
    def test_text_ends_before_the_stop_and_false_beginnings_are_released(
        self, text: str, stops: tuple[str, ...], delivered: str, block: int
    ) -> None:
        assert "".join(deliver(ids_of(text), block, stops)) == delivered

    def test_no_piece_holds_the_beginning_of_a_stop_string(self) -> None:
        text = DeliveredText(decode, ("END",))
        assert [text.push(ids_of(part)) for part in ("a E", "N", "X E", "ND more")] == ["a ", "", "ENX ", ""]
        assert text.stopped

    def test_tokens_after_the_stop_are_not_counted(self) -> None:
        text = DeliveredText(decode, ("b",))
        text.push(ids_of("abcd"))
        assert text.tokens == 2
