//! Reading a file in one pass gives what `tokenizers` reads, and leaves unusual files to it.

use std::path::Path;

use serde_json::Value;
use tokenizers::Model;

use super::*;
use crate::file::{Loaded, Overrides, load};

impl Bpe {
    /// The parts of a model with nothing strange in it.
    pub fn read(json: &str) -> Self {
        let file = serde_json::from_str(json).expect("a model");
        Self::new(&file).expect("nothing strange")
    }
}

/// A tokenizer with a model that has these fields, after vocabulary and merges.
fn read(fields: &str) -> crate::Result<Loaded> {
    load(&format!(r#"{{"version": "1.0", "model": {{{fields}}}}}"#), &Overrides::default())
}

const VOCAB: &str = r#""vocab": {"a": 0, "b": 1, "ab": 2, "é": 3}"#;
const TYPE: &str = r#""type": "BPE""#;

/// The models of the tokenizer that ships with abut, and of large ones where the environment names them.
fn models() -> Vec<String> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    let folder = std::env::var_os("ABUT_TOKENIZERS");
    let large = ["qwen3", "mistral_v3"]
        .into_iter()
        .filter_map(|name| Some(Path::new(folder.as_ref()?).join(name).join("tokenizer.json")));
    let files = std::iter::once(own.into()).chain(large.filter(|path| path.is_file()));
    files
        .map(|path| {
            let file = std::fs::read_to_string(path).expect("a file");
            let file: Value = serde_json::from_str(&file).expect("JSON");
            file["model"].to_string()
        })
        .collect()
}

#[test]
fn the_model_that_is_made_of_the_parts_is_the_one_that_tokenizers_reads() {
    let pairs = format!(r#"{{{TYPE}, {VOCAB}, "merges": [["a", "b"]]}}"#);
    let lines = format!(
        r##"{{{TYPE}, "dropout": 0.0, "unk_token": "é", "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": true, "continuing_subword_prefix": "", "end_of_word_suffix": "b",
            {VOCAB}, "merges": ["#version: 0.2", "a b", "a b"]}}"##
    );
    for model in models().into_iter().chain([pairs, lines]) {
        let expected: BPE = serde_json::from_str(&model).expect("a model");
        let mut whole = Bpe::read(&model).whole();
        // "No dropout" and "no prefix" may each be written in two ways.
        whole.dropout = expected.dropout;
        whole.continuing_subword_prefix.clone_from(&expected.continuing_subword_prefix);
        assert!(whole == expected, "{model:.300}");
    }
}

#[test]
fn an_unusual_file_is_read_by_tokenizers() {
    let merges = r#""merges": [["a", "b"]]"#;
    let is_made = |fields: &str| read(fields).expect("a model").model.has_hf();
    assert!(!is_made(&format!("{TYPE}, {VOCAB}, {merges}")));
    for fields in [
        format!("{VOCAB}, {merges}"),
        format!("{TYPE}, \"later\": 1, {VOCAB}, {merges}"),
        format!(r#"{TYPE}, "continuing_subword_prefix": "b", {VOCAB}, "merges": []"#),
        format!(r#"{TYPE}, "vocab": {{"a": 0, "a": 1}}, "merges": []"#),
        r#""type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a""#.to_owned(),
    ] {
        assert!(is_made(&fields), "{fields}");
    }
}

#[test]
fn a_file_that_tokenizers_refuses_is_refused() {
    for (fields, reason) in [
        (format!(r#"{TYPE}, {VOCAB}, "merges": [["b", "a"]]"#), "out of vocabulary"),
        (format!(r#"{TYPE}, {VOCAB}, "merges": [["a", "é"]]"#), "contradict each other"),
        (format!(r#"{TYPE}, {VOCAB}, "merges": ["a b", ["a", "b"]]"#), "did not match any variant"),
        (format!(r#"{TYPE}, {VOCAB}, "merges": [["a", "b", "b"]]"#), "did not match any variant"),
        (format!(r#"{TYPE}, {VOCAB}, "merges": ["a b b"]"#), "Merges text file invalid at line 1"),
        (format!(r#"{TYPE}, "vocab": {{"a": 0.5}}, "merges": []"#), "invalid type"),
        (format!("{TYPE}, {VOCAB}"), "Missing vocab/merges"),
        (format!(r#"{TYPE}, "dropout": 0.1, {VOCAB}, "merges": []"#), "dropout"),
        (format!(r#"{TYPE}, "dropout": -0.1, {VOCAB}, "merges": []"#), "between 0 and 1"),
    ] {
        let error = read(&fields).err().expect("an error").to_string();
        assert!(error.contains(reason), "{fields}: {error}");
    }
}

#[test]
fn a_narrowed_model_writes_its_text_as_the_whole_one_does() {
    let text = "TheĠquickĠbrownĠfox,ĠorĠaĠ▁▁▁▁fewĠofĠthem▁jump▁over▁the▁lazy▁dog.ĊĊĊ()<0x0A>é中";
    for model in models() {
        let bpe = Bpe::read(&model);
        // Across a character that is dropped others meet that do not stand side by side.
        let is_kept = |c: &char| bpe.byte_fallback || bpe.entries.id_of(&c.to_string()).is_some();
        let text: &str = &text.chars().filter(is_kept).collect::<String>();
        let (whole, narrowed) = (bpe.whole(), bpe.narrowed(text));
        let (all, kept) = (whole.get_vocab_size(), narrowed.get_vocab_size());
        assert!(kept < all, "{kept} of {all}");
        for word in text.split_inclusive('Ġ').chain(text.split('Ġ')).chain([text]) {
            let ids = |model: &BPE| -> Vec<_> {
                model.tokenize(word).expect("tokens").into_iter().map(|token| token.id).collect()
            };
            assert_eq!(ids(&narrowed), ids(&whole), "{word}");
        }
    }
}
