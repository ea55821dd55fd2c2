//! Random tokenizers of every normalizer, pre-tokenizer and model, and text to try them with.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokenizers::{
    NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
};

/// `SplitMix64`: enough for tests, and the same on every machine.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

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
    "<|a|>", "<b>", "don't", "  ", "\n\n", " \n ", "e\u{301}", "ab", "1234", "</s>", "AbC", "'re", "QQ",
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

/// The alphabet of one tokenizer: few characters meet often.
pub fn alphabet(rng: &mut Rng) -> Vec<char> {
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
                (0..1 + rng.below(3)).map(|_| normalizer(rng, depth - 1)).collect();
            json!({"type": "Sequence", "normalizers": inner})
        }
    }
}

fn pre_tokenizer(rng: &mut Rng, depth: usize) -> Value {
    let behaviors =
        ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
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
                (0..2 + rng.below(2)).map(|_| pre_tokenizer(rng, depth - 1)).collect();
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

fn model(rng: &mut Rng, words: &[String]) -> Value {
    let mut chars: BTreeSet<String> =
        words.iter().flat_map(|word| word.chars()).map(String::from).collect();
    for _ in 0..if rng.one_in(3) { chars.len() / 2 } else { 0 } {
        let unknown = chars.iter().nth(rng.below(chars.len())).unwrap().clone();
        chars.remove(&unknown);
    }
    let mut pieces: Vec<String> = vec!["?".to_owned()];
    let add = |piece: String, pieces: &mut Vec<String>| {
        if !pieces.contains(&piece) {
            pieces.push(piece);
        }
    };
    for c in &chars {
        add(c.clone(), &mut pieces);
    }
    let some_text = |rng: &mut Rng| {
        let word: Vec<char> = rng.pick(words).chars().collect();
        let from = rng.below(word.len());
        let to = (from + 1 + rng.below(5)).min(word.len());
        (from, word[from..to].iter().collect::<String>())
    };
    let vocab = |pieces: &[String]| -> Value {
        pieces.iter().enumerate().map(|(id, piece)| (piece.clone(), json!(id))).collect::<serde_json::Map<_, _>>().into()
    };
    match rng.below(10) {
        0 => {
            for _ in 0..30 {
                let (_, text) = some_text(rng);
                add(text, &mut pieces);
            }
            let exact = !rng.one_in(4);
            let entries: Vec<Value> = pieces
                .iter()
                .map(|piece| {
                    let score = -f64::from(u32::try_from(rng.below(40)).unwrap()) / if exact { 8.0 } else { 7.1 };
                    json!([piece, score])
                })
                .collect();
            json!({"type": "Unigram", "unk_id": 0, "vocab": entries, "byte_fallback": false})
        }
        1 => {
            for _ in 0..30 {
                let (from, text) = some_text(rng);
                add(if from == 0 { text } else { format!("##{text}") }, &mut pieces);
            }
            json!({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": vocab(&pieces)})
        }
        2 => {
            for word in words {
                add(word.clone(), &mut pieces);
            }
            json!({"type": "WordLevel", "unk_token": "?", "vocab": vocab(&pieces)})
        }
        _ => {
            let fallback = rng.one_in(3);
            if fallback {
                for byte in 0..=255u8 {
                    add(format!("<0x{byte:02X}>"), &mut pieces);
                }
            }
            let ignore_merges = rng.one_in(4);
            let marks = rng.one_in(8);
            let mut merges: Vec<[String; 2]> = Vec::new();
            for _ in 0..if marks { 0 } else { 4 + rng.below(20) } {
                // Merge neighbours of a word as far as the merges so far go, and one pair more.
                let mut symbols: Vec<String> =
                    rng.pick(words).chars().take(12).map(String::from).collect();
                for [left, right] in &merges {
                    let mut at = 0;
                    while at + 1 < symbols.len() {
                        if symbols[at] == *left && symbols[at + 1] == *right {
                            let tail = symbols.remove(at + 1);
                            symbols[at].push_str(&tail);
                        }
                        at += 1;
                    }
                }
                if symbols.len() < 2 {
                    continue;
                }
                let at = rng.below(symbols.len() - 1);
                let pair = [symbols[at].clone(), symbols[at + 1].clone()];
                let known = |piece: &String| pieces.contains(piece);
                if pair.iter().all(known) && !merges.contains(&pair) {
                    add(pair.concat(), &mut pieces);
                    merges.push(pair);
                }
            }
            if ignore_merges {
                for _ in 0..6 {
                    let (_, text) = some_text(rng);
                    add(text, &mut pieces);
                }
            }
            let (prefix, suffix) = match (marks, rng.one_in(2)) {
                (false, _) => (Value::Null, Value::Null),
                (_, true) => (json!("##"), Value::Null),
                (_, false) => (Value::Null, json!("</w>")),
            };
            if marks {
                for piece in chars {
                    add(format!("##{piece}"), &mut pieces);
                    add(format!("{piece}</w>"), &mut pieces);
                }
            }
            json!({"type": "BPE", "dropout": null, "unk_token": if rng.one_in(4) { Value::Null } else { json!("?") },
                "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix,
                "fuse_unk": rng.one_in(2), "byte_fallback": fallback,
                "ignore_merges": ignore_merges, "vocab": vocab(&pieces), "merges": merges})
        }
    }
}

fn added_tokens(rng: &mut Rng, chars: &[char], normalizer: &Value, model: &Value) -> Vec<Value> {
    let stage: Option<tokenizers::NormalizerWrapper> = (!normalizer.is_null())
        .then(|| serde_json::from_value(normalizer.clone()).unwrap());
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
        let space = content.starts_with(char::is_whitespace) || pattern.get().starts_with(char::is_whitespace);
        let taken = added.iter().any(|t: &Value| t["rstrip"] == true);
        if content.is_empty() || content == "?" || pattern.get().is_empty() || (space && (rstrip || taken))
            || !patterns.insert(content.clone()) || (content != pattern.get() && !patterns.insert(pattern.get().to_owned()))
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

/// A random tokenizer, as the text of its file, and the characters of its texts.
pub fn tokenizer(rng: &mut Rng) -> (Value, Vec<char>) {
    let chars = alphabet(rng);
    let normalizer = if rng.one_in(2) { Value::Null } else { normalizer(rng, 1) };
    let pre_tokenizer = if rng.one_in(4) { Value::Null } else { pre_tokenizer(rng, 1) };
    let mut config = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": null,
    });
    let sample: Vec<String> = (0..12).flat_map(|_| {
        let sample = text(rng, &chars, 16);
        words(&config, &sample)
    }).chain(["a".to_owned()]).collect();
    config["model"] = model(rng, &sample);
    config["added_tokens"] = added_tokens(rng, &chars, &config["normalizer"], &config["model"]).into();
    (config, chars)
}
