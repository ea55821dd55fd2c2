"""The files of a pretrained model: its tokenizer, its `tokenizer.json`, its stop tokens."""

import copy
import json
import os
import re
import warnings
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Any

from abut._native import Tokenizer
from abut.errors import MissingExtraError, TokenizerError

# As the Hub takes them: `model` or `owner/model`.
_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")

_CODE_HINT = (
    "hint: abut never runs code that comes with a model; if you trust this code, load the "
    "tokenizer yourself with trust_remote_code=True and pass that tokenizer"
)
_FOLDER_HINT = "hint: pass a folder that a fast tokenizer's save_pretrained has written"


def load_hf_tokenizer(source: str | os.PathLike[str]) -> Any:
    """Load a transformers tokenizer from a name, a folder or a tokenizer.json.

    A lone tokenizer.json has no chat template, no BOS and no EOS.

    Raises:
        TokenizerError: abut cannot use this tokenizer.
        MissingExtraError: transformers is not installed.
        OSError: the files cannot be read.
    """
    if not is_tokenizer_file(source):
        return load_transformers_tokenizer(source)
    Tokenizer.from_file(source)  # its errors name the file
    try:
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtraError(
            "a transformers tokenizer needs transformers: pip install 'abut[hf]'\n"
            "hint: a tokenizer.json alone, without a template, can be checked without transformers"
        ) from error
    return PreTrainedTokenizerFast(tokenizer_file=os.fspath(source))


def load_hf_processor(source: str | os.PathLike[str]) -> Any:
    """Load a transformers processor by name or folder; for a text model, its tokenizer.

    Raises:
        MissingExtraError: transformers is not installed.
        OSError: there is no such model.
    """
    if is_tokenizer_file(source):
        return load_hf_tokenizer(source)
    try:
        from transformers import AutoProcessor
    except ImportError as error:
        raise MissingExtraError(
            "a transformers processor needs transformers: pip install 'abut[hf]'"
        ) from error
    return AutoProcessor.from_pretrained(os.fspath(source), trust_remote_code=False)


def is_tokenizer_file(source: str | os.PathLike[str]) -> bool:
    """Return whether this names a lone tokenizer.json, not a model or its folder."""
    return Path(source).is_file() or Path(source).suffix == ".json"


def _refusing_broken_files(
    load: Callable[[str | os.PathLike[str]], Any],
) -> Callable[[str | os.PathLike[str]], Any]:
    """Refuse files at which the `tokenizers` package aborts or panics, or which it misreads.

    Its panics are not of type `Exception`. So abut reads the folder's file first, which takes a
    third of the time of transformers and names the fault.
    """

    @wraps(load)
    def checked(source: str | os.PathLike[str]) -> Any:
        name = os.fspath(source)
        if name and (Path(name) / "tokenizer.json").is_file():
            with warnings.catch_warnings(action="ignore"):  # they come again where it is taken over
                Tokenizer.from_file(Path(name) / "tokenizer.json")
        try:
            return load(source)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise TokenizerError(
                f"{name}: the tokenizers package crashed while it read tokenizer.json: {error}\n"
                "hint: copy the file from the model again"
            ) from error

    return checked


@_refusing_broken_files
def load_transformers_tokenizer(source: str | os.PathLike[str]) -> Any:
    """Load a tokenizer by name or folder with transformers.

    Raises:
        MissingExtraError: transformers is not installed.
        TokenizerError: the folder holds no tokenizer, a file of it is broken, or the tokenizer is
            code that comes with the model.
        OSError: there is no such folder, or transformers finds no such model (then its message).
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            "loading a tokenizer by name or folder needs transformers: pip install 'abut[hf]'\n"
            "hint: Tokenizer.from_file('tokenizer.json') works without transformers"
        ) from error
    name = os.fspath(source)
    folder = Path(name)
    is_folder = bool(name) and folder.is_dir()
    if not is_folder and not _MODEL_NAME.fullmatch(name):
        raise FileNotFoundError(
            f"{name!r} is neither a folder that exists nor the name of a model\n"
            "hint: pass a folder that exists, a tokenizer.json, or a name such as Qwen/Qwen3-8B"
        )
    # Spelled out: the name may be that of a record, and by default transformers asks whoever sits
    # at the terminal.
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # for what a folder lacks, transformers raises anything
        if "trust_remote_code" in str(error):
            raise TokenizerError(
                f"{name}: its tokenizer is code that comes with the model\n{_CODE_HINT}"
            ) from error
        if not is_folder:
            raise
        _name_what_is_broken(folder)
        raise TokenizerError(
            f"{folder}: transformers cannot load a tokenizer from this folder: "
            f"{type(error).__name__}: {error}\n{_FOLDER_HINT}"
        ) from error


def _name_what_is_broken(folder: Path) -> None:
    """Raise an error that names the file, where one is."""
    if not any(folder.iterdir()):
        raise TokenizerError(f"{folder}: the folder is empty\n{_FOLDER_HINT}")
    for name in ("tokenizer_config.json", "config.json"):
        if (folder / name).is_file():
            _json_object(folder / name)
    if (folder / "tokenizer.json").is_file():
        Tokenizer.from_file(folder / "tokenizer.json")


def generation_stop_ids(source: Any, *, vocab_size: int) -> list[int]:
    """Return all EOS ids of the model's generation config, at which TRL and the engines stop.

    Empty if the model has no such file, or if `source` is not a name or folder.

    Raises:
        TokenizerError: the file is broken, or an EOS in it is not an id of the tokenizer.
    """
    if not isinstance(source, str | os.PathLike) or is_tokenizer_file(source):
        return []
    from transformers.utils import cached_file

    try:
        path = Path(str(cached_file(os.fspath(source), "generation_config.json")))
    except OSError:  # the model has none
        return []
    eos = _json_object(path).get("eos_token_id")
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    for i in ids:
        if type(i) is not int or not 0 <= i < vocab_size:
            raise TokenizerError(
                f"{path}: eos_token_id has {i!r}, which is not an id of the tokenizer "
                f"({vocab_size} ids)\n"
                "hint: set eos_token_id to the id, or the list of ids, of the tokens that end a "
                "turn"
            )
    return list(ids)


def _json_object(path: Path) -> dict[str, Any]:
    hint = "hint: copy the file from the model again, or remove it"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}\n{hint}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} is not a JSON object\n{hint}")
    return value


def tokenizer_of(source: Any) -> Any:
    """Return the tokenizer of a multimodal processor, with the processor's chat template.

    A tokenizer is returned as it is. TRL renders prompts with the processor, whose template may be
    another one than its tokenizer's.

    Raises:
        TokenizerError: it is a processor without a tokenizer.
    """
    if _is_tokenizer(source):
        return source
    tokenizer: Any = getattr(source, "tokenizer", None)
    if not _is_tokenizer(tokenizer):
        raise TokenizerError(
            f"{type(source).__name__} is not a transformers tokenizer and does not have one\n"
            "hint: pass the model's tokenizer, or a processor with the attribute `tokenizer`"
        )
    template = getattr(source, "chat_template", None)
    if template and template != tokenizer.chat_template:
        tokenizer = copy.copy(tokenizer)  # the processor goes on with its own
        tokenizer.chat_template = template
    return tokenizer


def _is_tokenizer(source: Any) -> bool:
    return callable(getattr(source, "convert_tokens_to_ids", None))


def tokenizer_json(source: Any) -> str:
    """Return the `tokenizer.json` of a transformers tokenizer, a model's name or a folder.

    The current truncation and padding are part of that text; the core ignores both.

    Raises:
        TokenizerError: the tokenizer has no `tokenizers` backend, so it has no such file.
        MissingExtraError: a name or folder was given and transformers is not installed.
    """
    tokenizer = source
    if isinstance(source, str | os.PathLike):
        tokenizer = load_transformers_tokenizer(source)
    # A multimodal processor holds its tokenizer, and may have a chat template of its own.
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(
            f"{type(source).__name__} is not a fast tokenizer: it has no backend_tokenizer\n"
            "hint: pass a tokenizer that has a tokenizer.json, or its name or folder"
        )
    return str(backend.to_str())


def tokenizer_source(
    source: Any, control: Collection[str], textual: Collection[str]
) -> tuple[str, list[str]]:
    """Return the `tokenizer.json` and the added tokens that are control tokens in any case.

    Those are `control`, and what the chat template spells unless `textual` says otherwise. Tokens
    of whitespace are left out: a template's own line breaks spell them by accident.
    """
    tokenizer = source
    if isinstance(source, str | os.PathLike):
        tokenizer = load_transformers_tokenizer(source)
    text = tokenizer_json(tokenizer)
    template = getattr(tokenizer, "chat_template", None)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    template = template or getattr(tokenizer, "chat_template", None) or ""
    templates = template.values() if isinstance(template, dict) else [template]
    # Asked, and not read from the text: to parse that takes 0.4 s where there are 150,000 ids.
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    written = {
        token.content
        for token in added
        if token.content.strip() and any(token.content in text for text in templates)
    }
    return text, sorted({*control, *(written - set(textual))})
