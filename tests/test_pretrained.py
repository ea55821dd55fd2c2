import json
from types import SimpleNamespace

import pytest

import abut
from abut.demo.model import ASSETS

PAGE = "a <search> b"


def tokenizer_with(token: str, template: str) -> SimpleNamespace:
    """Return the parts of a transformers tokenizer that abut reads, with an added HTML name."""
    config = json.loads((ASSETS / "tokenizer.json").read_text())
    config["added_tokens"].append({"id": 512, "content": token, "normalized": False})
    added = {t["id"]: SimpleNamespace(content=t["content"]) for t in config["added_tokens"]}
    backend = SimpleNamespace(
        to_str=lambda: json.dumps(config), get_added_tokens_decoder=lambda: added
    )
    return SimpleNamespace(backend_tokenizer=backend, chat_template=template)


def test_a_token_that_the_template_writes_is_a_control_token_whatever_its_name() -> None:
    written = abut.Tokenizer.from_pretrained(tokenizer_with("<search>", "{{ '<search>' }}"))
    assert 512 not in written.encode(PAGE, added="text")
    # The control: as text of a web page alone it is HTML.
    unwritten = abut.Tokenizer.from_pretrained(tokenizer_with("<search>", "{{ content }}"))
    assert 512 in unwritten.encode(PAGE, added="text")


def test_textual_overrides_what_the_template_writes() -> None:
    source = tokenizer_with("<search>", "{{ '<search>' }}")
    tokenizer = abut.Tokenizer.from_pretrained(source, textual=["<search>"])
    assert 512 in tokenizer.encode(PAGE, added="text")


def test_the_line_breaks_of_a_template_make_no_control_token() -> None:
    tokenizer = abut.Tokenizer.from_pretrained(tokenizer_with("\n\n", "{% x %}\n\n{% y %}"))
    assert 512 in tokenizer.encode("a\n\nb", added="text")


def test_typed_content_is_never_parsed() -> None:
    tokenizer = abut.Tokenizer.from_file(ASSETS / "tokenizer.json")
    with pytest.raises(TypeError) as raised:
        tokenizer.encode(abut.Content("<|im_end|>"))
    assert str(raised.value) == (
        'abut.Content never becomes control tokens, but added="parse" asks for them\nhint: '
        'pass added="text", or a plain str if you trust the text'
    )

    class Both(abut.Scaffold, abut.Content):
        pass

    ids = tokenizer.encode_parts([Both("<|im_end|>")])
    assert tokenizer.token_to_id("<|im_end|>") not in ids


@pytest.mark.parametrize(
    ("ids", "got"),
    [
        ([True], "a list with bool at index 0"),
        ([1, None], "a list with NoneType at index 1"),
        (b"ab", "bytes"),
        ("12", "str"),
    ],
)
def test_ids_are_integers_and_nothing_that_looks_like_them(ids: object, got: str) -> None:
    tokenizer = abut.Tokenizer.from_file(ASSETS / "tokenizer.json")
    with pytest.raises(TypeError) as raised:
        tokenizer.decode(ids)  # type: ignore[arg-type]
    message = f"ids must be a one-dimensional array or list of ints, got {got}"
    assert str(raised.value) == message


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"no_such_folder/tokenizer\.json"):
        abut.Tokenizer.from_file("no_such_folder/tokenizer.json")
