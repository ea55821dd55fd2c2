//! Random tokenizers of every normalizer, pre-tokenizer and model, and text to try them with.

// By its path, since the fuzz target takes this file in by a path of its own.
#[path = "random/models.rs"]
mod models;
#[path = "random/rng.rs"]
mod rng;

use std::collections::BTreeSet;

use models::{Vocab, bpe, characters, model};
pub use rng::Rng;
use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
};

/// The patterns of widely used models, and a few of no model at all.
pub const PATTERNS: [&str; 12] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+",
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[a-z]+ ?",
    r"\s?[a-zA-Z]+|\s+$",
];

const ALPHABET: &str = "aabbeeste ABEĳ  \n\r\t12'.,-_<|>/▁é\u{301}ſß中文あ\u{3000}İΣ한ᄀ\u{1161}\u{11A8}ﬁ¨½😀\u{200d}\u{a0}\u{1E9B}٣²\0";

/// Words that some normalizer, pattern or added token is about.
const SPELLED: [&str; 14] = [
    "<|a|>",
    "<b>",
    "don't",
    "  ",
    "\n\n",
    " \n ",
    "e\u{301}",
    "ab",
    "1234",
    "</s>",
    "AbC",
    "'re",
    "QQ",
    "hello world",
];

pub fn text(rng: &mut Rng, chars: &[char], most: usize) -> String {
    let mut text = String::new();
    for _ in 0..rng.below(most + 1) {
        if rng.one_in(6) {
            text.push_str(rng.pick(&SPELLED));
        } else {
            text.push(rng.pick(chars));
        }
    }
    text
}

/// Characters of one kind, which patterns keep together.
const RUNS: [&str; 12] = [
    "abcdefghijklmnopqrstuvwxyz",
    "aAbBeEsStTſßĳİΣé",
    "0123456789٣²½",
    " ",
    " \t\u{a0}\u{3000}",
    " \n",
    "!-.,_<|>/'+=",
    "😀👩\u{200d}\u{1f3fd}\u{fe0f}🤖\u{1fae0}",
    "\u{301}\u{323}\u{310}",
    "中文字漢あア",
    "한글ᄀ\u{1161}\u{11A8}",
    "ab'st \n",
];

/// A long run of few kinds of characters, with something else in it now and then.
pub fn run(rng: &mut Rng, chars: &[char]) -> String {
    let mut run = text(rng, chars, 6);
    for _ in 0..=rng.below(3) {
        let own: Vec<char> = rng.pick(&RUNS).chars().collect();
        let from = if rng.one_in(3) { chars } else { &own[..] };
        // One character, few of them in turn, or all of them.
        let unit: Vec<char> = (0..=rng.below(4)).map(|_| rng.pick(from)).collect();
        let kind = rng.below(3);
        for at in 0..rng.below(220) {
            run.push(if kind == 0 { rng.pick(from) } else { unit[at % unit.len()] });
            if rng.one_in(60) {
                run.push_str(rng.pick(&SPELLED));
            }
        }
    }
    run
}

/// The whole alphabet, letters more often than the rest.
pub fn everything() -> Vec<char> {
    ALPHABET.chars().chain('a'..='z').collect()
}

/// The alphabet of one tokenizer: few characters meet often.
fn alphabet(rng: &mut Rng) -> Vec<char> {
    let all: Vec<char> = ALPHABET.chars().collect();
    (0..3 + rng.below(20)).map(|_| rng.pick(&all)).chain("a ".chars()).collect()
}

fn normalizer(rng: &mut Rng, depth: usize) -> Value {
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let flag = |rng: &mut Rng| rng.one_in(2);
    match rng.below(if depth == 0 { 16 } else { 20 }) {
        0 => json!({"type": "NFC"}),
        1 => json!({"type": "NFD"}),
        2 => json!({"type": "NFKC"}),
        3 => json!({"type": "NFKD"}),
        4 => json!({"type": "Lowercase"}),
        5 => json!({"type": "StripAccents"}),
        6 => json!({"type": "Strip", "strip_left": flag(rng), "strip_right": flag(rng)}),
        7 => json!({"type": "Prepend", "prepend": "▁"}),
        8 | 9 => replace(" ", "▁"),
        10 => replace("ab", rng.pick(&["c", "", "a b", "ba"])),
        11 => replace(rng.pick(&["\n", "a", "''", "  "]), rng.pick(&["", " ", "bb"])),
        12 => json!({"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}),
        13 => json!({"type": "BertNormalizer", "clean_text": flag(rng),
            "handle_chinese_chars": flag(rng), "strip_accents": flag(rng), "lowercase": flag(rng)}),
        14 => json!({"type": "Nmt"}),
        15 => json!({"type": "Prepend", "prepend": " "}),
        _ => {
            let inner: Vec<Value> =
                (0..=rng.below(2)).map(|_| normalizer(rng, depth - 1)).collect();
            json!({"type": "Sequence", "normalizers": inner})
        }
    }
}

fn pre_tokenizer(rng: &mut Rng, depth: usize) -> Value {
    let behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    match rng.below(if depth == 0 { 17 } else { 22 }) {
        0 => json!({"type": "Whitespace"}),
        1 => json!({"type": "WhitespaceSplit"}),
        2 => json!({"type": "BertPreTokenizer"}),
        3 => json!({"type": "Punctuation", "behavior": rng.pick(&behaviors)}),
        4 => json!({"type": "Digits", "individual_digits": rng.one_in(2)}),
        5 => json!({"type": "CharDelimiterSplit", "delimiter": rng.pick(&["a", " ", "▁"])}),
        6 => json!({"type": "Split", "pattern": {"String": rng.pick(&[" ", "ab", "\n", "▁"])},
            "behavior": rng.pick(&behaviors), "invert": rng.one_in(6)}),
        7..=10 => json!({"type": "Split", "pattern": {"Regex": rng.pick(&PATTERNS)},
            "behavior": if rng.one_in(2) { "Isolated" } else { rng.pick(&behaviors) },
            "invert": rng.one_in(6)}),
        11 | 12 => json!({"type": "ByteLevel", "add_prefix_space": rng.one_in(2),
            "trim_offsets": true, "use_regex": !rng.one_in(3)}),
        13 | 14 => json!({"type": "Metaspace", "replacement": "▁", "split": rng.one_in(2),
            "prepend_scheme": rng.pick(&["always", "first", "never"])}),
        15 => json!({"type": "UnicodeScripts"}),
        16 => json!({"type": "FixedLength", "length": 1 + rng.below(4)}),
        _ => {
            let inner: Vec<Value> =
                (0..=1 + rng.below(2)).map(|_| pre_tokenizer(rng, depth - 1)).collect();
            json!({"type": "Sequence", "pretokenizers": inner})
        }
    }
}

/// The words that the pipeline makes of a text.
fn words(config: &Value, sample: &str) -> Vec<String> {
    let mut normalized = NormalizedString::from(sample);
    if !config["normalizer"].is_null() {
        let stage: tokenizers::NormalizerWrapper =
            serde_json::from_value(config["normalizer"].clone()).unwrap();
        stage.normalize(&mut normalized).unwrap();
    }
    let mut pieces = PreTokenizedString::from(normalized);
    if !config["pre_tokenizer"].is_null() {
        let stage: tokenizers::PreTokenizerWrapper =
            serde_json::from_value(config["pre_tokenizer"].clone()).unwrap();
        stage.pre_tokenize(&mut pieces).unwrap();
    }
    let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
    splits.into_iter().map(|(word, _, _)| word.to_owned()).filter(|word| !word.is_empty()).collect()
}

fn added_tokens(rng: &mut Rng, chars: &[char], normalizer: &Value, model: &Value) -> Vec<Value> {
    let stage: Option<tokenizers::NormalizerWrapper> =
        (!normalizer.is_null()).then(|| serde_json::from_value(normalizer.clone()).unwrap());
    let mut patterns = BTreeSet::new();
    let mut added = Vec::new();
    for _ in 0..rng.below(5) {
        let mut content = if rng.one_in(3) {
            let mut some: String = text(rng, chars, 4);
            some.retain(|c| c != '\0');
            some
        } else {
            rng.pick(&["<|a|>", "<b>", "  ", "\n\n", "</s>", "<x>", "▁▁", "<|im_end|>"]).to_owned()
        };
        if rng.one_in(5) {
            // A token that the model itself could write.
            content = match &model["vocab"] {
                Value::Object(map) => map.keys().nth(rng.below(map.len())).unwrap().clone(),
                _ => content,
            };
        }
        let flags: Vec<bool> = (0..5).map(|_| rng.one_in(5)).collect();
        let mut pattern = NormalizedString::from(content.as_str());
        if let (true, Some(stage)) = (flags[3], &stage) {
            stage.normalize(&mut pattern).unwrap();
        }
        // Of two tokens with one pattern `tokenizers` takes one at random; an empty one is refused.
        // It duplicates text where whitespace that one token swallows begins another.
        let rstrip = flags[2] && !added.iter().any(|t: &Value| starts_with_space(&t["content"]));
        let space = content.starts_with(char::is_whitespace)
            || pattern.get().starts_with(char::is_whitespace);
        let taken = added.iter().any(|t: &Value| t["rstrip"] == true);
        if content.is_empty()
            || content == "?"
            || pattern.get().is_empty()
            || (space && (rstrip || taken))
            || !patterns.insert(content.clone())
            || (content != pattern.get() && !patterns.insert(pattern.get().to_owned()))
        {
            continue;
        }
        added.push(json!({"id": 9000 + added.len(), "content": content, "single_word": flags[0],
            "lstrip": flags[1], "rstrip": rstrip, "normalized": flags[3], "special": flags[4]}));
    }
    added
}

fn starts_with_space(content: &Value) -> bool {
    content.as_str().unwrap().starts_with(char::is_whitespace)
}

/// A random tokenizer, as the text of its file, and the characters of its texts. About half have a
/// shape that the core has an encoder of its own for.
pub fn tokenizer(rng: &mut Rng) -> (Value, Vec<char>) {
    let chars = alphabet(rng);
    let shape = rng.pick(&[Shape::ByteLevel, Shape::SentencePiece, Shape::Any, Shape::Any]);
    let (normalizer, pre_tokenizer) = match shape {
        Shape::ByteLevel => byte_level(rng),
        Shape::SentencePiece => sentence_piece(rng),
        Shape::Any => (
            if rng.one_in(2) { Value::Null } else { normalizer(rng, 1) },
            if rng.one_in(4) { Value::Null } else { pre_tokenizer(rng, 1) },
        ),
    };
    let mut config = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": null,
    });
    let sample: Vec<String> = (0..12)
        .flat_map(|_| {
            let sample = text(rng, &chars, 16);
            words(&config, &sample)
        })
        .chain(["a".to_owned()])
        .collect();
    config["model"] = match shape {
        Shape::Any => model(rng, &sample),
        Shape::ByteLevel => {
            let bytes = ByteLevel::alphabet().into_iter().collect::<BTreeSet<char>>();
            let unknown = ["?".to_owned()].into_iter();
            bpe(rng, &sample, Vocab(unknown.chain(bytes.into_iter().map(String::from)).collect()))
        }
        Shape::SentencePiece => {
            let vocab = characters(rng, &sample).1;
            let mut model = bpe(rng, &sample, vocab);
            model["ignore_merges"] = false.into();
            model
        }
    };
    config["added_tokens"] =
        added_tokens(rng, &chars, &config["normalizer"], &config["model"]).into();
    (config, chars)
}

#[derive(Clone, Copy)]
enum Shape {
    ByteLevel,
    SentencePiece,
    Any,
}

/// Normalizer and pre-tokenizer of byte-level BPE behind the pattern of a widely used model.
fn byte_level(rng: &mut Rng) -> (Value, Value) {
    let patterns = match rng.below(6) {
        5 => vec![PATTERNS[8], PATTERNS[9], PATTERNS[5]],
        one => vec![PATTERNS[one]],
    };
    let split = |pattern| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false})
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false});
    let stages: Vec<Value> = patterns.into_iter().map(split).chain([bytes]).collect();
    let normalizer = if rng.one_in(2) { Value::Null } else { json!({"type": "NFC"}) };
    (normalizer, json!({"type": "Sequence", "pretokenizers": stages}))
}

/// Normalizer and pre-tokenizer as the files of Mistral, Llama 2 and Gemma have them.
fn sentence_piece(rng: &mut Rng) -> (Value, Value) {
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    match rng.below(4) {
        0 => (json!({"type": "Sequence", "normalizers": [prepend, spaces]}), Value::Null),
        1 => (spaces, Value::Null),
        _ => {
            let scheme = rng.pick(&["always", "first", "never"]);
            (
                Value::Null,
                json!({"type": "Metaspace", "replacement": "▁", "split": false,
                "prepend_scheme": scheme}),
            )
        }
    }
}
