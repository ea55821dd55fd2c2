//! Text that stays whole: real vocabularies, and small ones in which everything meets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{compare, large, load, rounds, text};
use crate::rng::Rng;
use crate::tokenizer::Tokenizer;

const CHARS: &str = "aaabbc  ▁▁\n.<0xE>?é中日カ😀\u{1f3fd}\u{301}\u{0}\u{e000}\u{10ffff}=-";

/// Normalizer and pre-tokenizer, as the files of widely used models have them.
fn shapes() -> Vec<(Value, Value)> {
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let sequence = |stages: [&Value; 2]| json!({"type": "Sequence", "normalizers": stages});
    vec![
        // Mistral
        (json!(null), metaspace("first")),
        (json!(null), metaspace("always")),
        (json!(null), metaspace("never")),
        // Llama 2, TinyLlama
        (sequence([&prepend, &spaces]), json!(null)),
        (sequence([&spaces, &prepend]), json!(null)),
        // Gemma
        (spaces.clone(), json!(null)),
        (
            spaces,
            json!({"type": "Split", "pattern": {"String": " "},
            "behavior": "MergedWithPrevious", "invert": false}),
        ),
    ]
}

/// The traits in which small models differ.
#[derive(Debug, Clone, Copy)]
struct Traits {
    byte_fallback: bool,
    fuse_unk: bool,
    /// Merges may hold unknown characters, or tokens for their bytes.
    merges_unknown: bool,
}

impl Traits {
    fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|bits| Self {
            byte_fallback: bits & 1 != 0,
            fuse_unk: bits & 2 != 0,
            merges_unknown: bits & 4 != 0,
        })
    }
}

/// A vocabulary of about half of the characters, and of the results of random merges.
fn small(rng: &mut Rng, traits: Traits, shape: &(Value, Value)) -> Value {
    let mut pieces: Vec<String> = ["▁", "a"].map(str::to_owned).to_vec();
    pieces.extend(CHARS.chars().filter(|c| *c != ' ' && rng.below(2) == 0).map(String::from));
    let unknown: Vec<String> = if traits.byte_fallback {
        (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect()
    } else {
        vec![if rng.below(2) == 0 { "?" } else { "<▁>" }.to_owned()]
    };
    let mut vocab: BTreeMap<String, usize> = BTreeMap::new();
    for piece in unknown.iter().chain(&pieces) {
        let next = vocab.len();
        vocab.entry(piece.clone()).or_insert(next);
    }
    if traits.merges_unknown {
        // Bytes that the characters of the texts have.
        let bytes = ["<0xF0>", "<0x9F>", "<0x98>", "<0xE4>", "<0xB8>", "<0xAD>"];
        let some = |piece: &&String| !traits.byte_fallback || bytes.contains(&piece.as_str());
        pieces.extend(unknown.iter().filter(some).cloned());
    }
    let mut merges: Vec<[String; 2]> = Vec::new();
    for _ in 0..rng.below(60) {
        let pair = [(); 2].map(|()| pieces[rng.below(pieces.len())].clone());
        let whole = pair.concat();
        if !merges.contains(&pair) && whole.chars().count() < 24 {
            let next = vocab.len();
            vocab.entry(whole.clone()).or_insert(next);
            pieces.push(whole);
            merges.push(pair);
        }
    }
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": shape.0, "pre_tokenizer": shape.1,
        "model": {"type": "BPE", "unk_token": unknown[0], "fuse_unk": traits.fuse_unk,
            "byte_fallback": traits.byte_fallback, "ignore_merges": false, "vocab": vocab,
            "merges": merges},
    })
}

fn fast(file: &Value) -> Tokenizer {
    let tokenizer = load(file);
    assert_eq!(tokenizer.profile().encoder, "fast", "{:?}", tokenizer.profile().demoted_because);
    tokenizer
}

/// Text over few characters, which meet often.
fn small_text(rng: &mut Rng, most: usize) -> String {
    let chars: Vec<char> = CHARS.chars().collect();
    let few: Vec<char> = (0..=rng.below(8)).map(|_| chars[rng.below(chars.len())]).collect();
    (0..rng.below(most)).map(|_| few[rng.below(few.len())]).collect()
}

#[test]
fn every_shape_of_every_small_model_is_as_the_general_encoder_has_it() {
    let mut rng = Rng(21);
    for traits in Traits::all() {
        for shape in shapes() {
            for _ in 0..6 {
                let file = small(&mut rng, traits, &shape);
                let mut tokenizer = fast(&file);
                let texts = (0..rounds(200)).map(|_| small_text(&mut rng, 40));
                compare(&mut tokenizer, texts);
            }
        }
    }
}

#[test]
fn runs_of_any_length_are_merged_alike() {
    let mut rng = Rng(25);
    for traits in Traits::all() {
        let mut tokenizer = fast(&small(&mut rng, traits, &shapes()[0]));
        let long = ["=", " ", "▁", "a", "😀", "ab", "a 中"].map(|unit| unit.repeat(20_000));
        compare(&mut tokenizer, long);
        compare(&mut tokenizer, (0..20).map(|_| small_text(&mut rng, 3000)));
    }
}

#[test]
fn added_tokens_begin_segments() {
    let mut rng = Rng(29);
    for traits in Traits::all() {
        for (index, shape) in shapes().iter().enumerate() {
            // Marked text is matched where the shape has no normalizer.
            let is_normalized = index < 3;
            let mut file = small(&mut rng, traits, shape);
            let added =
                ["<.>", "ab", "  ", "中日", "▁▁"].iter().enumerate().map(|(at, content)| {
                    let normalized = at % 2 == 1 && is_normalized;
                    json!({"id": 9000 + at, "content": content, "single_word": false,
                    "lstrip": at == 0, "rstrip": false, "normalized": normalized,
                    "special": at == 0})
                });
            file["added_tokens"] = added.collect();
            let mut tokenizer = fast(&file);
            compare(&mut tokenizer, (0..rounds(400)).map(|_| small_text(&mut rng, 30)));
        }
    }
}

#[test]
fn mistrals_vocabulary_is_encoded_as_the_general_encoder_does() {
    let Some(mut file) = large("mistral_v3") else { return };
    let mut rng = Rng(33);
    for (normalizer, pre_tokenizer) in shapes() {
        file["normalizer"] = normalizer;
        file["pre_tokenizer"] = pre_tokenizer;
        let mut tokenizer = fast(&file);
        compare(&mut tokenizer, (0..rounds(2000)).map(|_| text(&mut rng, 60)));
        compare(&mut tokenizer, ["=", " ", "a", "\n", "😀"].map(|unit| unit.repeat(100_000)));
        let probe = tokenizer.fast.as_ref().expect("it is in use").probe();
        let words: Vec<&str> = probe.split_inclusive(' ').collect();
        let shuffled = (0..rounds(300))
            .map(|_| (0..rng.below(40)).map(|_| words[rng.below(words.len())]).collect());
        compare(&mut tokenizer, shuffled);
    }
}

#[test]
fn a_file_of_another_shape_is_left_to_the_general_encoder() {
    let traits = Traits { byte_fallback: true, fuse_unk: true, merges_unknown: false };
    let encoder = |shape: usize, change: &dyn Fn(&mut Value)| {
        let mut file = small(&mut Rng(37), traits, &shapes()[shape]);
        change(&mut file);
        load(&file).profile().encoder
    };
    let put = |shape: usize, place: &str, value: Value| {
        let (parent, name) = place.rsplit_once('/').expect("a place");
        encoder(shape, &|file| file.pointer_mut(parent).expect("there")[name] = value.clone())
    };
    let normalized = json!([{"id": 9000, "content": "<.>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": true, "special": false}]);
    for (shape, place, value) in [
        (0, "/pre_tokenizer/split", json!(true)),
        (0, "/pre_tokenizer/replacement", json!("_")),
        (0, "/normalizer", json!({"type": "NFKC"})),
        (0, "/pre_tokenizer", json!(null)),
        (3, "/normalizer/normalizers/0/prepend", json!("▁▁")),
        (5, "/normalizer/content", json!("_")),
        (5, "/added_tokens", normalized.clone()),
        (6, "/pre_tokenizer/invert", json!(true)),
        (6, "/normalizer", json!(null)),
        (0, "/model/ignore_merges", json!(true)),
        (0, "/model/end_of_word_suffix", json!("</w>")),
    ] {
        assert_eq!(put(shape, place, value), "hf", "{place}");
    }
    assert_eq!(put(0, "/added_tokens", normalized), "fast");
    // Characters that the model lacks are dropped.
    let drops = |file: &mut Value| {
        file["model"]["byte_fallback"] = json!(false);
        file["model"]["unk_token"] = json!(null);
    };
    assert_eq!(encoder(0, &drops), "hf");
    // They are written as bytes, but not all bytes are there; or a space is one of them.
    for entry in ["<0x07>", "▁"] {
        let lacks = |file: &mut Value| {
            file["model"]["merges"] = json!([]);
            file["model"]["vocab"].as_object_mut().expect("a map").remove(entry);
        };
        assert_eq!(encoder(0, &lacks), "hf", "{entry}");
    }
}
