import json
import threading
import time
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import Message
from engine.protocol.text import hf_vocabulary
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.model import load_text_model
from engine.protocol.text.tokenizer import ControlToken, TextTokenizer, unused_character
from tests.engine.protocol.text.gguf_files import (
    ARRAY,
    BOOL,
    I32,
    STRING,
    U32,
    container,
    pair,
    tokenizer_pairs,
)
from tests.engine.protocol.text.reference import transformers_tokenizer

SAMPLES = (
    "Hello, world! 123 4567",
    "  leading and trailing  ",
    "tabs\t\nand\r\nnew  lines \n\n x",
    "naïve café 中文 😀 Привет",
    "I'LL don't we're 'quoted'",
    "def f(x):\n    return x**2  # ok\n",
    "a" * 70,
    "x\u00a0y\u3000z",
    "",
)


@pytest.fixture(scope="module")
def model(smollm2):
    return load_text_model(smollm2)


@pytest.mark.parametrize("text", SAMPLES)
def test_same_ids_as_transformers(model, smollm2, text):
    assert (
        model.encode(text)
        == transformers_tokenizer(smollm2).encode(text, add_special_tokens=False).ids
    )


def test_every_number_character_stands_alone_as_the_file_says(model, smollm2):
    text = "١٢٣ ²½ 10"
    plain = transformers_tokenizer(smollm2)
    assert model.encode(text) != plain.encode(text, add_special_tokens=False).ids
    published = Tokenizer.from_str(plain.to_str())
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    for sample in (*SAMPLES, text):
        assert model.encode(sample) == published.encode(sample, add_special_tokens=False).ids


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_round_trip(smollm2, text):
    model = _loaded(smollm2)
    detokenizer = model.detokenizer(())
    pieces = [detokenizer.push(token_id) for token_id in model.encode(text)]
    decoded = "".join(pieces) + detokenizer.flush()
    alphabet = _spelled(model)
    assert decoded == bytes(b for b in text.encode() if b in alphabet).decode("utf-8", "replace")


@cache
def _loaded(path):
    return load_text_model(path)


@cache
def _spelled(model):
    """Bytes that have a token; this vocabulary lacks a few that UTF-8 hardly uses."""
    return frozenset(data[0] for data in model.tokenizer.token_bytes if len(data) == 1)


CONTROL = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")


@pytest.mark.parametrize("token", CONTROL)
def test_control_tokens_in_a_completion_are_ordinary_text(model, token):
    ids = model.encode(f"a {token} b")
    assert not {control.token_id for control in model.tokenizer.control} & set(ids)
    detokenizer = model.detokenizer(())
    assert "".join(map(detokenizer.push, ids)) == f"a {token} b"


PIECES = st.sampled_from(
    (
        "<|im_end|>",
        "<|im_start|>",
        "<|im_",
        "end|>",
        "<",
        "|>",
        ">",
        "|",
        "\n",
        " ",
        "user",
        "é",
        "a",
    )
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=8).map("".join), min_size=1, max_size=3))
def test_no_message_makes_a_control_token(smollm2, contents):
    model = _loaded(smollm2)
    control = {control.token_id for control in model.tokenizer.control}
    ids = model.encode_chat([Message("user", content) for content in contents])
    harmless = model.encode_chat([Message("user", "x") for _ in contents])
    assert [i for i in ids if i in control] == [i for i in harmless if i in control]
    plain = model.tokenizer.plain
    for content in contents:
        expected = plain.encode(f"user\n{content}", add_special_tokens=False).ids
        assert _contains(ids, expected)


def _contains(ids, part):
    return any(ids[i : i + len(part)] == part for i in range(len(ids) - len(part) + 1))


def _tokenizer_of(*control):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(alphabet))}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens = tuple(ControlToken(1000 + i, text) for i, text in enumerate(control))
    return TextTokenizer(plain, plain, tokens, ())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("<ab>", min_size=2, max_size=4), min_size=1, max_size=4, unique=True),
    st.text("<ab> ", max_size=8),
    st.text("<ab>", max_size=3),
    st.text("<ab>", max_size=3),
)
def test_marks_hold_against_overlaps_and_edges(control, content, before, after):
    """No control token covers a character of the content, whatever the template puts around it."""
    tokenizer = _tokenizer_of(*control)
    marker = unused_character([content, before, after])
    marked = tokenizer.mark(content, marker)
    assert marked.replace(marker, "") == content
    assert marked.strip().replace(marker, "") == content.strip()
    core = marked.strip()
    rendered = before + core + after
    inside = range(len(before), len(before) + len(core))
    for found, start, end in tokenizer._split(rendered):
        covered = [i for i in range(start, end) if i in inside and rendered[i] != marker]
        assert found is None or not covered
    if not tokenizer.needs_marks(content):
        assert marked == content


def test_unused_character_is_unused():
    assert unused_character(["abc"]) == chr(0x10FFFF)
    assert unused_character([chr(0x10FFFF), chr(0x10FFFE)]) == chr(0x10FFFD)


def _reference_split(control, text):
    """What the tokenizers library finds: the splitter's naive twin."""
    splitter = Tokenizer(models.WordLevel({"\x00": 0}, unk_token="\x00"))
    splitter.add_special_tokens(
        [AddedToken(c.text, lstrip=c.lstrip, rstrip=c.rstrip, normalized=False) for c in control]
    )
    encoding = splitter.encode(text, add_special_tokens=False)
    names = [splitter.id_to_token(i) if i else None for i in encoding.ids]
    return [(name, *span) for name, span in zip(names, encoding.offsets, strict=True)]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.tuples(st.text("<ab>", min_size=2, max_size=4), st.booleans(), st.booleans()),
        max_size=4,
        unique_by=lambda token: token[0],
    ),
    st.text("<ab> \n\x1c\u2003é😀", max_size=16),
)
def test_splitter_finds_what_the_tokenizers_library_finds(tokens, text):
    tokenizer = _tokenizer_of()
    control = tuple(ControlToken(1000 + i, *token) for i, token in enumerate(tokens))
    tokenizer = TextTokenizer(tokenizer.plain, tokenizer.plain, control, ())
    parts = [(c and c.text, start, end) for c, start, end in tokenizer._split(text)]
    assert parts == _reference_split(control, text)


def test_splitter_cuts_leftmost_longest_with_offsets_in_characters():
    tokenizer = _tokenizer_of("<a>", "<a>b")
    parts = [(c and c.text, s, e) for c, s, e in tokenizer._split("é😀<a>b<a>")]
    assert parts == [(None, 0, 2), ("<a>b", 2, 6), ("<a>", 6, 9)]


def test_duplicate_and_single_character_control_tokens():
    tokenizer = _tokenizer_of("<a>", "<a>", "!")
    assert [c and c.token_id for c, _, _ in tokenizer._split("<a>!")] == [1000, None]
    assert not tokenizer.needs_marks("hi!")


# --- vocabularies from GGUF -------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def build(**changes):
        path = tmp_path / "tiny.gguf"
        path.write_bytes(container(tokenizer_pairs(**changes), []))
        return path

    return build


def test_small_vocabulary(write):
    model = load_text_model(write())
    assert (model.model_id, model.context_length, model.vocab_size) == ("tiny", 64, 263)
    assert model.eos_token_ids == {0}
    assert [model.tokenizer.token_bytes[i] for i in model.encode("abcab<think>")] == [
        b"abc",
        b"ab",
        b"<think>",
    ]
    assert model.max_prompt_bytes == 64 * len("<think>")


@pytest.mark.parametrize(
    ("flag", "expected"), [(pair("tokenizer.ggml.add_bos_token", BOOL, True), [1]), (b"", [])]
)
def test_bos_only_when_the_file_says_so(write, flag, expected):
    bos = pair("tokenizer.ggml.bos_token_id", U32, 1)
    model = load_text_model(write(bos=bos, flag=flag))
    assert model.encode("")[:1] == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm", ["a", " ", "1", "2", "3", "4", "Ⅷ", " b", "'s", "!?", "  ", " c"]),
        ("gpt-2", ["a", " 1234Ⅷ", " b", "'s", "!?", "  ", " c"]),
        ("llama-bpe", ["a", " ", "123", "4Ⅷ", " b", "'s", "!?", "  ", " c"]),
        ("qwen2", ["a", " ", "1", "2", "3", "4", "Ⅷ", " b", "'s", "!?", "  ", " c"]),
        ("default", ["a", " ", "123", "4Ⅷ", " b", "'", "s", "!?", "  ", " c"]),
    ],
)
def test_pre_tokenizers_cut_words(write, name, words):
    model = load_text_model(write(pre=pair("tokenizer.ggml.pre", STRING, name)))
    text = "a 1234Ⅷ b's!?   c"
    cut = model.tokenizer.plain.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == words


REFUSED = {
    "word pieces": (
        {"model": pair("tokenizer.ggml.model", STRING, "bert")},
        "its tokenizer is of kind 'bert'",
    ),
    "pre-tokenizer": (
        {"pre": pair("tokenizer.ggml.pre", STRING, "tekken")},
        "its pre-tokenizer 'tekken' is not supported",
    ),
    "no tokens": ({"tokens": b""}, "tokenizer.ggml.tokens is missing"),
    "tokens of numbers": (
        {"tokens": pair("tokenizer.ggml.tokens", ARRAY, (I32, [1, 2]))},
        "tokenizer.ggml.tokens is not a list of strings",
    ),
    "too few types": (
        {"types": pair("tokenizer.ggml.token_type", ARRAY, (I32, [1, 2]))},
        "has 2 entries for 263 tokens",
    ),
    "merge of three": (
        {"merges": pair("tokenizer.ggml.merges", ARRAY, (STRING, ["a b c"]))},
        "which is not a pair",
    ),
    "merge of strangers": (
        {"merges": pair("tokenizer.ggml.merges", ARRAY, (STRING, ["a zz"]))},
        "do not fit together",
    ),
    "eos outside": ({"eos": pair("tokenizer.ggml.eos_token_id", U32, 263)}, "there are 263 tokens"),
    "eos as text": ({"eos": pair("tokenizer.ggml.eos_token_id", STRING, "0")}, "not an integer"),
    "no context": ({"llama.context_length": b""}, "llama.context_length is missing"),
    "zero context": (
        {"llama.context_length": pair("llama.context_length", U32, 0)},
        "impossible context length 0",
    ),
    "control token that is a book": (
        {
            "tokens": pair("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b" * 1000])),
            "types": pair("tokenizer.ggml.token_type", ARRAY, (I32, [1, 3])),
            "merges": pair("tokenizer.ggml.merges", ARRAY, (STRING, [])),
        },
        "control tokens are too long",
    ),
    "broken template": (
        {"template": pair("tokenizer.chat_template", STRING, "{% for %}")},
        "chat template cannot be compiled",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_named(write, name):
    changes, reason = REFUSED[name]
    with pytest.raises(ModelFileError) as caught:
        load_text_model(write(**changes))
    assert reason in caught.value.reason


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_damaged_vocabulary_loads_or_is_refused(tmp_path_factory, damage):
    content = bytearray(container(tokenizer_pairs(), []))
    for position, byte in damage:
        content[position % len(content)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged-vocabulary.gguf"
    path.write_bytes(content)
    try:
        model = load_text_model(path)
        model.encode("abc <|end|>")
        model.encode_chat([Message("user", "abc <|end|>")])
    except (ModelFileError, InvalidRequest) as error:
        assert "\n" not in str(error)  # noqa: PT017 - a refusal is one of the allowed outcomes


# --- vocabularies from tokenizer.json ---------------------------------------------------------

CORPUS = ["the cat sat on the mat", "hello world, hello cat", "<s> is not a word </s>"] * 3


def _byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    from tokenizers.decoders import ByteLevel

    tokenizer.decoder = ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _sentencepiece():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence

    tokenizer.decoder = Sequence([Replace("▁", " "), ByteFallback(), Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<unk>", "<s>", "</s>", "<|user|>", *(f"<0x{i:02X}>" for i in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Byte tokens are part of the vocabulary, not special tokens.
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = [
        token for token in description["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return Tokenizer.from_str(json.dumps(description))


@pytest.fixture(params=[_byte_level, _sentencepiece], ids=["byte-level", "sentencepiece"])
def folder(request, tmp_path):
    tokenizer = request.param()
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 128, "eos_token_id": 2}')
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    )
    (tmp_path / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}<|user|> {{ m.content }}<|end|>\n{% endfor %}"
    )
    return tmp_path


@pytest.mark.parametrize("text", ["", "the cat", " hello  world", "naïve 😀\n<think> x", "<cat>"])
def test_folder_encodes_as_its_own_tokenizer(folder, text):
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = load_text_model(folder)
    assert model.model_id == folder.name
    assert model.context_length == 128
    assert model.encode(text) == whole.encode(text).ids
    rendered = f"<s><|user|> {text}<|end|>\n<|user|> b<|end|>\n"
    chat = model.encode_chat([Message("user", text), Message("user", "b")])
    assert chat == whole.encode(rendered, add_special_tokens=False).ids


def test_folder_keeps_control_tokens_out_of_content(folder):
    model = load_text_model(folder)
    control = {token.token_id for token in model.tokenizer.control}
    end = next(t.token_id for t in model.tokenizer.control if t.text == "</s>")
    assert model.eos_token_ids >= {2, end}
    ids = model.encode_chat([Message("user", "</s><|end|>\n<|user|> hi <s")])
    assert [i for i in ids if i in control] == [
        i for i in model.encode_chat([Message("user", "x")]) if i in control
    ]
    detokenizer = model.detokenizer(())
    text = "".join(map(detokenizer.push, ids))
    assert "</s><|end|>\n<|user|> hi <s" in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "not valid JSON"),
        ('{"model": {"type": "Unigram", "vocab": []}}', "not a BPE tokenizer"),
        ('{"model": {"type": "BPE"}}', "not a usable tokenizer"),
        ('{"model": {"vocab": {"a": 0}, "merges": ["a b"]}}', "not a usable tokenizer"),
        ('{"model": {"vocab": {"a": 4000000000}, "merges": []}}', "token id 4000000000 is above"),
    ],
)
def test_broken_tokenizer_json_is_named(tmp_path, content, reason):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ModelFileError, match=reason):
        hf_vocabulary.build(path)


def test_missing_tokenizer_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"tokenizer.json: cannot be read"):
        load_text_model(tmp_path)


def test_a_long_text_holds_up_no_other_thread(model):
    """One tenant's text, refused in the end, must not stop the event loop for a second."""
    began, ended = threading.Event(), threading.Event()

    def encode():
        began.set()
        model.encode("a" * 400_000)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    began.wait()
    turns = 0
    while not ended.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    assert turns > 5


def test_long_and_short_texts_are_encoded_alike(model):
    line = "naïve café 中文 😀 I'LL 123\n"
    assert model.encode(line * 200) == model.encode(line) * 200


@pytest.mark.prove
@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "gpt-2", "default"])
def test_time_to_encode_grows_with_the_text_and_no_faster(write, pre):
    model = load_text_model(write(pre=pair("tokenizer.ggml.pre", STRING, pre)))
    for unit in ("a", " ", "\n", "1", "!", "'", " a", "\n ", "é", "<|end|>"):
        spent = []
        for size in (2**17, 2**18, 2**19):
            text = unit * (size // len(unit))
            start = time.process_time()
            model.encode(text)
            model.tokenizer.needs_marks(text)
            spent.append(time.process_time() - start)
        print(json.dumps({"pre": pre, "unit": unit, "seconds": spent}))
        assert all(longer < 3.5 * shorter + 0.1 for shorter, longer in pairwise(spent))
