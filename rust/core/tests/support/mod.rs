//! Small random tokenizers, and `tokenizers` as the oracle.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

pub mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};

use abut_core::{AddedMode, Overrides, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A small alphabet in which spelled tokens are likely.
pub const ALPHABET: &str = "ab<|> \n▁é";

#[derive(Debug, Clone)]
pub struct Spec {
    pub added: Vec<Value>,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub model: Value,
}

impl Spec {
    pub fn json(&self) -> String {
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.added, "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer, "post_processor": null, "decoder": null,
            "model": self.model,
        })
        .to_string()
    }

    pub fn ours(&self) -> Tokenizer {
        Tokenizer::from_json(&self.json(), &Overrides::default()).unwrap()
    }

    /// `None` where the oracle is not sound.
    pub fn oracle(&self) -> Option<Oracle> {
        self.oracle_is_sound().then(|| Oracle(self.json().parse().unwrap()))
    }

    /// False where `tokenizers` duplicates text or panics (whitespace that one token swallows
    /// begins another).
    fn oracle_is_sound(&self) -> bool {
        let strips = |token: &Value, flag: &str| token[flag].as_bool().unwrap();
        let content = |token: &Value| token["content"].as_str().unwrap().to_owned();
        let vanishes =
            |token: &Value| self.normalizer["type"] == "Strip" && content(token).trim().is_empty();
        if self.added.iter().any(vanishes) {
            return false;
        }
        !self.added.iter().any(|token| strips(token, "rstrip"))
            || !self.added.iter().any(|token| content(token).starts_with(char::is_whitespace))
    }
}

pub struct Oracle(tokenizers::Tokenizer);

impl Oracle {
    pub fn new(tokenizer: tokenizers::Tokenizer) -> Self {
        Self(tokenizer)
    }

    /// `None` where `tokenizers` panics.
    pub fn encode(&self, text: &str) -> Option<Vec<u32>> {
        catch_unwind(AssertUnwindSafe(|| {
            self.0.encode_fast(text, false).unwrap().get_ids().to_vec()
        }))
        .ok()
    }
}

pub fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, AddedMode::Parse).unwrap()
}

/// A BPE model over the alphabet, with some merges.
pub fn bpe() -> Value {
    let mut pieces: Vec<String> = ALPHABET.chars().map(String::from).collect();
    let merges =
        [("a", "b"), ("<", "|"), ("|", ">"), ("ab", "ab"), ("▁", "a"), ("\n", "\n"), (" ", "b")];
    pieces.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    pieces.push("?".to_owned());
    let vocab: serde_json::Map<String, Value> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.clone(), json!(id))).collect();
    let merges = merges.map(|(a, b)| [a, b]);
    json!({"type": "BPE", "dropout": null, "unk_token": "?", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": false, "vocab": vocab, "merges": merges})
}

fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::collection::vec(prop::sample::select(vec!["a", "b", "<", "|", ">", " "]), 1..4)
            .prop_map(|chars| chars.concat()),
        1 => prop::sample::select(vec!["\n", "\n\n", "  ", "<b>", "</b>", "<|a|>", "<|b|>"])
            .prop_map(str::to_owned),
    ]
}

fn added_token(normalized: bool) -> impl Strategy<Value = Value> {
    let flag = || prop::bool::weighted(0.2);
    (content(), flag(), flag(), flag(), any::<bool>(), prop::bool::weighted(0.3)).prop_map(
        move |(content, single_word, lstrip, rstrip, special, after)| {
            json!({"id": 0, "content": content, "single_word": single_word, "lstrip": lstrip,
                "rstrip": rstrip, "normalized": normalized && after, "special": special})
        },
    )
}

/// Any added tokens over one of a few pipelines.
pub fn spec(normalized: bool) -> impl Strategy<Value = Spec> {
    let pipelines = prop::sample::select(vec![
        (json!(null), json!(null)),
        (json!({"type": "NFC"}), json!(null)),
        (
            json!(null),
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                "split": true}),
        ),
        (
            json!(null),
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                "split": false}),
        ),
        (json!({"type": "Prepend", "prepend": "▁"}), json!(null)),
        (json!({"type": "Strip", "strip_left": true, "strip_right": true}), json!(null)),
        (json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}), json!(null)),
    ]);
    (prop::collection::vec(added_token(normalized), 1..6), pipelines).prop_map(
        |(mut added, (normalizer, pre_tokenizer))| {
            let mut seen = std::collections::HashSet::new();
            added.retain(|token| seen.insert(token["content"].clone()));
            if normalizer["type"] == "Strip" {
                // What is stripped to nothing is refused on load; of two tokens that are stripped
                // to the same text, `tokenizers` takes one at random.
                let mut seen = std::collections::HashSet::from([String::new()]);
                added.retain(|token| {
                    seen.insert(token["content"].as_str().unwrap().trim().to_owned())
                });
            }
            for (id, token) in added.iter_mut().enumerate() {
                token["id"] = json!(100 + id);
            }
            Spec { added, normalizer, pre_tokenizer, model: bpe() }
        },
    )
}

pub fn text() -> impl Strategy<Value = String> {
    let alphabet: Vec<char> = ALPHABET.chars().collect();
    prop::collection::vec(prop::sample::select(alphabet), 0..24)
        .prop_map(|chars| chars.into_iter().collect())
}
