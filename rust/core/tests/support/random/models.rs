//! Random models over the words of a text.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Rng;

/// The entries of a vocabulary, each once, in the order of their ids; the first is unknown.
pub struct Vocab(pub Vec<String>);

impl Vocab {
    fn add(&mut self, piece: impl Into<String>) {
        let piece = piece.into();
        if !self.0.contains(&piece) {
            self.0.push(piece);
        }
    }

    fn json(&self) -> Value {
        let entries = self.0.iter().enumerate();
        Value::Object(entries.map(|(id, piece)| (piece.clone(), json!(id))).collect())
    }
}

/// A part of a word, and whether it begins it.
fn part_of(rng: &mut Rng, words: &[String]) -> (String, bool) {
    let word: Vec<char> = rng.pick(words).chars().collect();
    let from = rng.below(word.len());
    let to = (from + 1 + rng.below(5)).min(word.len());
    (word[from..to].iter().collect(), from == 0)
}

/// The characters of the words, now and then only some, and a vocabulary of them.
pub fn characters(rng: &mut Rng, words: &[String]) -> (BTreeSet<String>, Vocab) {
    let mut chars: BTreeSet<String> =
        words.iter().flat_map(|word| word.chars()).map(String::from).collect();
    for _ in 0..if rng.one_in(3) { chars.len() / 2 } else { 0 } {
        let unknown = chars.iter().nth(rng.below(chars.len())).unwrap().clone();
        chars.remove(&unknown);
    }
    let mut vocab = Vocab(vec!["?".to_owned()]);
    for c in &chars {
        vocab.add(c.clone());
    }
    (chars, vocab)
}

pub fn model(rng: &mut Rng, words: &[String]) -> Value {
    let (chars, mut vocab) = characters(rng, words);
    match rng.below(10) {
        0 => unigram(rng, words, vocab),
        1 => word_piece(rng, words, vocab),
        2 => {
            for word in words {
                vocab.add(word.clone());
            }
            json!({"type": "WordLevel", "unk_token": "?", "vocab": vocab.json()})
        }
        3 => marked_bpe(rng, &chars, vocab),
        _ => bpe(rng, words, vocab),
    }
}

fn unigram(rng: &mut Rng, words: &[String], mut vocab: Vocab) -> Value {
    for _ in 0..30 {
        vocab.add(part_of(rng, words).0);
    }
    // Sums of the second kind are rounded.
    let divisor = if rng.one_in(4) { 7.1 } else { 8.0 };
    let score = |rng: &mut Rng| -f64::from(u32::try_from(rng.below(40)).unwrap()) / divisor;
    let entries: Vec<Value> = vocab.0.iter().map(|piece| json!([piece, score(rng)])).collect();
    json!({"type": "Unigram", "unk_id": 0, "vocab": entries, "byte_fallback": false})
}

fn word_piece(rng: &mut Rng, words: &[String], mut vocab: Vocab) -> Value {
    for _ in 0..30 {
        let (text, begins) = part_of(rng, words);
        vocab.add(if begins { text } else { format!("##{text}") });
    }
    json!({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": vocab.json()})
}

/// BPE that marks what continues or ends a word.
fn marked_bpe(rng: &mut Rng, chars: &BTreeSet<String>, mut vocab: Vocab) -> Value {
    for piece in chars {
        vocab.add(format!("##{piece}"));
        vocab.add(format!("{piece}</w>"));
    }
    let (prefix, suffix) =
        if rng.one_in(2) { (json!("##"), Value::Null) } else { (Value::Null, json!("</w>")) };
    json!({"type": "BPE", "dropout": null, "unk_token": "?", "fuse_unk": rng.one_in(2),
        "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix, "byte_fallback": false,
        "ignore_merges": false, "vocab": vocab.json(), "merges": []})
}

pub fn bpe(rng: &mut Rng, words: &[String], mut vocab: Vocab) -> Value {
    let byte_fallback = rng.one_in(3);
    if byte_fallback {
        (0..=255u8).for_each(|byte| vocab.add(format!("<0x{byte:02X}>")));
    }
    let mut merges: Vec<[String; 2]> = Vec::new();
    for _ in 0..4 + rng.below(20) {
        // Neighbours in a word, as far as the merges so far go, and one pair more.
        let mut symbols: Vec<String> = rng.pick(words).chars().take(12).map(String::from).collect();
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
        if pair.iter().all(|piece| vocab.0.contains(piece)) && !merges.contains(&pair) {
            vocab.add(pair.concat());
            merges.push(pair);
        }
    }
    let ignore_merges = rng.one_in(4);
    if ignore_merges {
        // Words that no merge reaches.
        for _ in 0..6 {
            vocab.add(part_of(rng, words).0);
        }
    }
    let unk = if rng.one_in(4) { Value::Null } else { json!("?") };
    json!({"type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": rng.one_in(2), "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges, "vocab": vocab.json(), "merges": merges})
}
