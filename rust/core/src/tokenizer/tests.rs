//! The fast encoders against the general one: ids and spans, at every edge.

mod char_level;
mod made_late;

use std::path::Path;

use serde_json::{Value, json};

use crate::byte_chars::byte_chars;
use crate::encode::{Edge, Encoded};
use crate::file::Overrides;
use crate::parts::{Joined, Part};
use crate::rng::Rng;
use crate::tokenizer::Tokenizer;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Patterns of widely used models, as their files spell them.
const SPLITS: [&[&str]; 9] = [
    &[GPT2],
    // GPT-4, Llama 3
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // Qwen 2, Qwen 3
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // OLMo 2
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // Qwen 3.5
    &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // GPT-4o, gpt-oss
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // Mistral's Tekken
    &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    // DeepSeek V3
    &[
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ],
];

/// A few characters of every kind that a pattern tells apart, and some that it must not.
const CHARS: &str = "abstremvldABSLLE  \t\n\n\r12٣²½Ⅷ'.,;!/-_<|>=¨\u{301}\u{302}\u{323}\u{488}éßſǅʰªº中日カ・ー゛\u{3040}〇한ᄀ\u{1161}\u{11a8}กำहि्שׁ\u{a0}\u{85}\u{2003}\u{3000}\u{200d}\u{0}\u{7f}\u{feff}İΣςﬁ😀\u{1f3fd}\u{e000}\u{378}\u{10ffff}\u{2f800}\u{212b}";
const SPELLED: [&str; 13] = [
    "'ſt",
    "\u{301}ABC",
    "1\u{20e3}AB",
    "'re",
    "'LL",
    "'ſ",
    "e\u{301}",
    "o\u{323}\u{302}",
    "\r\n",
    "   ",
    "HTTPServer",
    "//\n",
    "1234567",
];

fn text(rng: &mut Rng, most: usize) -> String {
    let chars: Vec<char> = CHARS.chars().collect();
    // Few different characters meet often.
    let few: Vec<char> = (0..2 + rng.below(12)).map(|_| chars[rng.below(chars.len())]).collect();
    let mut text = String::new();
    for _ in 0..rng.below(most) {
        match rng.below(12) {
            0 => text.push_str(SPELLED[rng.below(SPELLED.len())]),
            1 => text.push(chars[rng.below(chars.len())]),
            2 => {
                text.extend(char::from_u32(u32::try_from(rng.below(0x11_0000)).expect("a code")));
            }
            _ => text.push(few[rng.below(few.len())]),
        }
    }
    text
}

/// The number of texts, unless the environment sets another one.
fn rounds(usual: usize) -> usize {
    std::env::var("ABUT_FAST_ROUNDS").map_or(usual, |n| n.parse().expect("a number"))
}

fn read(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

/// A large tokenizer, where the environment names the folder that has it.
fn large(name: &str) -> Option<Value> {
    let folder = std::env::var_os("ABUT_TOKENIZERS")?;
    let path = Path::new(&folder).join(name).join("tokenizer.json");
    path.is_file().then(|| read(path))
}

/// The tokenizer that ships with abut, and Qwen3's.
fn files() -> Vec<Value> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    [read(own), of_all_pairs(read(own))].into_iter().chain(large("qwen3")).collect()
}

/// The file with a model that merges any two bytes: a word that ends one character too early or too
/// late has other tokens, which real vocabularies hide.
fn of_all_pairs(mut file: Value) -> Value {
    let bytes = byte_chars().map(String::from);
    let mut pairs: Vec<[&String; 2]> =
        bytes.iter().flat_map(|left| bytes.iter().map(move |right| [left, right])).collect();
    let mut rng = Rng(21);
    for at in (1..pairs.len()).rev() {
        pairs.swap(at, rng.below(at + 1));
    }
    let entries =
        bytes.iter().cloned().chain(pairs.iter().map(|pair| pair.map(|c| &c[..]).concat()));
    let vocab: serde_json::Map<String, Value> =
        entries.enumerate().map(|(id, entry)| (entry, json!(id))).collect();
    file["model"]["vocab"] = json!(vocab);
    file["model"]["merges"] = json!(pairs);
    file
}

fn with_splits(mut file: Value, splits: &[&str]) -> Tokenizer {
    let mut stages: Vec<Value> = splits
        .iter()
        .map(|regex| {
            json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
        })
        .collect();
    stages.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false}));
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": stages});
    load(&file)
}

fn load(file: &Value) -> Tokenizer {
    Tokenizer::from_json(&file.to_string(), &Overrides::default()).expect("a tokenizer")
}

fn encode(tokenizer: &Tokenizer, joined: &Joined<'_>, edge: Edge) -> Encoded {
    tokenizer.encode_joined(joined, edge).expect("it can be written")
}

/// Panics where the two encoders differ; how many tokens there were.
fn compare(tokenizer: &mut Tokenizer, texts: impl IntoIterator<Item = String>) -> usize {
    let mut tokens = 0;
    for (index, text) in texts.into_iter().enumerate() {
        let scaffold = index / 8 % 2 == 1;
        let part = if scaffold { Part::scaffold(&text) } else { Part::content(&text) };
        let mut joined = Joined::new([part]);
        joined.with_spans = index % 2 == 0;
        let edge = Edge::ALL[index / 2 % 4];
        let ours = encode(tokenizer, &joined, edge);
        let fast = tokenizer.fast.take();
        assert!(fast.is_some(), "the fast encoder is in use");
        let expected = encode(tokenizer, &joined, edge);
        tokenizer.fast = fast;
        assert_eq!(ours.ids, expected.ids, "{edge:?} {text:?}");
        assert_eq!(ours.spans, expected.spans, "{edge:?} {text:?}");
        tokens += ours.ids.len();
    }
    tokens
}

#[test]
fn every_pattern_is_known_and_cuts_as_the_regex_engine_does() {
    let mut rng = Rng(5);
    let rounds = rounds(3000);
    for mut file in files() {
        for (index, splits) in SPLITS.iter().enumerate() {
            file["normalizer"] = if index % 3 == 0 { json!(null) } else { json!({"type": "NFC"}) };
            file["model"]["ignore_merges"] = json!(index % 2 == 1);
            let mut tokenizer = with_splits(file.clone(), splits);
            assert_eq!(tokenizer.profile().encoder, "fast", "{splits:?}");
            assert!(compare(&mut tokenizer, (0..rounds).map(|_| text(&mut rng, 40))) > 10_000);
        }
    }
}

#[test]
fn gpt2_spells_its_pattern_by_a_flag() {
    let mut rng = Rng(9);
    for mut file in files() {
        file["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true});
        let mut tokenizer = load(&file);
        compare(&mut tokenizer, (0..1000).map(|_| text(&mut rng, 40)));
    }
}

#[test]
fn long_words_are_merged_as_short_ones() {
    let mut rng = Rng(13);
    for file in files() {
        let mut tokenizer = with_splits(file, SPLITS[3]);
        let words = (0..60).map(|_| {
            let letters: Vec<char> = "abetshing ".chars().take(2 + rng.below(9)).collect();
            let len = rng.below(3000);
            (0..len).map(|_| letters[rng.below(letters.len())]).collect()
        });
        compare(&mut tokenizer, words);
        compare(&mut tokenizer, ["=".repeat(10_000), "a".repeat(100_000), "\n".repeat(5000)]);
    }
}

#[test]
fn added_tokens_that_match_normalized_text_are_cut_out() {
    let mut rng = Rng(17);
    for mut file in files() {
        let next = file["added_tokens"].as_array().map_or(0, Vec::len) + 200_000;
        for (index, content) in ["<b>", "ab", "  ", "é,"].iter().enumerate() {
            let added = json!({"id": next + index, "content": content, "single_word": index == 1,
                "lstrip": index == 0, "rstrip": false, "normalized": true, "special": false});
            file["added_tokens"].as_array_mut().expect("a list").push(added);
        }
        for normalizer in [json!(null), json!({"type": "NFC"})] {
            file["normalizer"] = normalizer;
            let mut tokenizer = with_splits(file.clone(), SPLITS[3]);
            compare(&mut tokenizer, (0..2000).map(|_| text(&mut rng, 40)));
        }
    }
}

#[test]
fn a_tokenizer_of_another_shape_is_left_to_the_general_encoder() {
    let file = || files().remove(0);
    let changes: [(&str, Value); 6] = [
        ("/normalizer", json!({"type": "Lowercase"})),
        ("/pre_tokenizer", json!({"type": "Whitespace"})),
        ("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed")),
        ("/pre_tokenizer/pretokenizers/0/pattern", json!({"Regex": r"\p{L}+"})),
        ("/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true)),
        ("/model/end_of_word_suffix", json!("</w>")),
    ];
    for (place, value) in changes {
        let mut file = file();
        *file.pointer_mut(place).expect("it is there") = value;
        assert_eq!(load(&file).profile().encoder, "hf", "{place}");
    }
    assert_eq!(load(&file()).profile().encoder, "fast");
}

#[test]
fn an_encoder_that_differs_is_demoted() {
    let file = files().remove(0);
    let mut tokenizer = load(&file);
    let mut other = file;
    other["model"]["merges"].as_array_mut().expect("a list").truncate(3);
    tokenizer.fast = load(&other).fast;
    tokenizer.compare_encoders().expect("both can write the probe");
    assert_eq!(tokenizer.profile().encoder, "hf");
    let why = tokenizer.profile().demoted_because.as_deref().expect("a reason");
    assert!(why.starts_with("it differs from tokenizers at \""), "{why}");
}

#[test]
fn threads_share_an_encoder() {
    let tokenizer = with_splits(files().remove(0), SPLITS[3]);
    let texts: Vec<String> = (0..200).map(|n| text(&mut Rng(n), 60)).collect();
    let all = || -> Vec<Vec<u32>> {
        let ids = |text: &String| {
            encode(&tokenizer, &Joined::new([Part::content(text)]), Edge::Start).ids
        };
        texts.iter().map(ids).collect()
    };
    let expected = all();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(all)).collect();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), expected);
        }
    });
}
