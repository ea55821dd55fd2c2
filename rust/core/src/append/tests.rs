//! Certificates: tokens that are kept stay.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::rng::Rng;
use crate::{AddedMode, Overrides, Trajectory};

/// BPE over `a`, `b` and `c` without a pre-tokenizer, in whose vocabulary all pairs meet.
fn tokenizer(rng: &mut Rng) -> Tokenizer {
    let mut pieces: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
    let mut merges: Vec<[String; 2]> = Vec::new();
    while pieces.len() < 24 {
        let pair = [(); 2].map(|()| pieces[rng.below(pieces.len())].clone());
        if !pieces.contains(&pair.concat()) {
            pieces.push(pair.concat());
            merges.push(pair);
        }
    }
    for pair in ["aa", "ab", "ac", "ba", "bb", "bc", "ca", "cb", "cc"] {
        if !pieces.iter().any(|piece| piece == pair) {
            pieces.push(pair.to_owned());
        }
    }
    let vocab: serde_json::Map<String, Value> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.clone(), id.into())).collect();
    let model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
    let json = json!({"version": "1.0", "model": model}).to_string();
    Tokenizer::from_json(&json, &Overrides::default()).expect("a tokenizer")
}

fn text(rng: &mut Rng, most: usize) -> String {
    (0..=rng.below(most)).map(|_| ['a', 'b', 'c'][rng.below(3)]).collect()
}

#[test]
fn a_certificate_keeps_the_tokens_of_a_long_run() {
    let (mut rng, mut certified) = (Rng(7), 0);
    for _ in 0..40 {
        let tokenizer = Arc::new(tokenizer(&mut rng));
        let mut trajectory = Trajectory::new(tokenizer.clone());
        let mut open = OpenText::new(Edge::Start);
        let mut ids: Vec<u32> = Vec::new();
        let mut whole = String::new();
        for _ in 0..60 {
            let piece = text(&mut rng, 20);
            whole.push_str(&piece);
            let part = [Part::content(&piece)];
            let tail = open.encode_with_parts(&tokenizer, &ids, &part).expect("it can be written");
            certified += usize::from(tail.kept > 0);
            open.push(&part, Provenance::Env);
            let settled = open.settle(&tokenizer, &tail);
            assert_eq!(settled, Settled::default(), "nothing here is an anchor");
            ids.truncate(tail.kept);
            ids.extend(tail.encoded.ids);
            trajectory.append_parts(&part, Provenance::Env).expect("it can be written");
            let expected = tokenizer.encode(&whole, AddedMode::Text).expect("it can be written");
            assert_eq!((trajectory.ids(), &ids), (&expected[..], &expected), "{whole}");
        }
    }
    assert!(certified > 1500, "{certified} of 2400 appends were certified");
}

#[test]
fn certified_tokens_stay_and_of_the_others_some_do_not() {
    let (mut rng, mut stayed, mut changed) = (Rng(11), 0, 0);
    for _ in 0..200 {
        let tokenizer = tokenizer(&mut rng);
        let encode = |text: &str| tokenizer.encode(text, AddedMode::Text).expect("known");
        for _ in 0..200 {
            let (a, b) = (text(&mut rng, 12), text(&mut rng, 12));
            let (left, right, joined) = (encode(&a), encode(&b), encode(&(a.clone() + &b)));
            let (last, first) = (left[left.len() - 1], right[0]);
            let same = joined == [left, right].concat();
            if tokenizer.stay_apart(last, first) {
                assert!(same, "{a} | {b}");
                stayed += 1;
            } else {
                changed += usize::from(!same);
            }
        }
    }
    assert!(stayed > 1000 && changed > 1000, "{stayed} stayed, {changed} changed");
}

/// abut's own tokenizer: byte-level BPE behind Qwen's pattern.
fn own() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    let json = std::fs::read_to_string(path).expect("it comes with abut");
    Tokenizer::from_json(&json, &Overrides::default()).expect("a tokenizer")
}

/// Appends one character after the other; the bytes that each append encoded.
fn encoded_bytes(tokenizer: &Tokenizer, text: &str) -> Vec<usize> {
    let (mut open, mut ids) = (OpenText::new(Edge::Start), Vec::new());
    let mut settled_ids = Vec::new();
    let mut buffer = [0; 4];
    let encoded = text.chars().map(|c| {
        let part = [Part::content(c.encode_utf8(&mut buffer))];
        let tail = open.encode_with_parts(tokenizer, &ids, &part).expect("it can be written");
        let encoded = tail.boundary + c.len_utf8() - tail.restarted_at();
        open.push(&part, Provenance::Env);
        let settled = open.settle(tokenizer, &tail);
        ids.truncate(tail.kept);
        ids.extend(tail.encoded.ids);
        settled_ids.extend(ids.drain(..settled.tokens));
        encoded
    });
    let encoded = encoded.collect();
    settled_ids.extend(ids);
    assert_eq!(settled_ids, tokenizer.encode(text, AddedMode::Text).expect("known"), "{text}");
    encoded
}

#[test]
fn an_append_to_a_long_word_encodes_few_bytes() {
    let tokenizer = own();
    let mut rng = Rng(5);
    let mut random = |from: &str, count: usize| -> String {
        let from: Vec<char> = from.chars().collect();
        (0..count).map(|_| from[rng.below(from.len())]).collect()
    };
    let runs = [
        random("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", 4000),
        random("0123456789abcdef", 4000),
        random("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", 4000),
        "a".repeat(4000),
        "er".repeat(2000),
        random("😀🤖🚀\u{1fae0}", 2000),
        "👩🏽\u{200d}👩\u{200d}👧\u{fe0f}".repeat(300),
        random("中文字漢あア", 2000),
        random("0123456789", 4000),
        random("!#$%&*-=<|", 4000),
        " ".repeat(4000),
        "\n".to_owned() + &" ".repeat(4000),
    ];
    for text in runs {
        let encoded = encoded_bytes(&tokenizer, &text);
        // The bytes that are not walked yet, and the tokens that are encoded again.
        let most = encoded.iter().max().expect("there are appends");
        assert!(*most <= 512, "{most} bytes at once: {}", &text[..16]);
    }
}

#[test]
fn a_run_without_a_theory_is_encoded_again_as_a_whole() {
    // Marks can be put into another order by one more of them.
    let text = "e".to_owned() + &"\u{301}".repeat(1000);
    let encoded = encoded_bytes(&own(), &text);
    assert_eq!(encoded.iter().max(), Some(&text.len()));
}

/// Byte-level BPE of these merges and entries besides them, behind Qwen's pattern.
fn crafted(merges: &[[&str; 2]], entries: &[String], ignore_merges: bool) -> Tokenizer {
    with_added(merges, entries, ignore_merges, json!([]))
}

fn with_added(
    merges: &[[&str; 2]],
    entries: &[String],
    ignore_merges: bool,
    added: Value,
) -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    let json = std::fs::read_to_string(path).expect("it comes with abut");
    let mut config: Value = serde_json::from_str(&json).expect("a file");
    let bytes = crate::byte_chars::byte_chars().into_iter().map(String::from);
    let made = merges.iter().map(|pair| pair.concat());
    let all = bytes.chain(made).chain(entries.iter().cloned()).enumerate();
    let vocab: serde_json::Map<String, Value> = all.map(|(id, entry)| (entry, id.into())).collect();
    config["added_tokens"] = added;
    config["model"] = json!({"type": "BPE", "vocab": vocab, "merges": merges,
        "ignore_merges": ignore_merges});
    Tokenizer::from_json(&config.to_string(), &Overrides::default()).expect("a tokenizer")
}

/// Follows a text that grows by pieces of as many characters, and compares after each.
fn follow(tokenizer: &Arc<Tokenizer>, text: &str, step: usize) {
    let mut trajectory = Trajectory::new(tokenizer.clone());
    let chars: Vec<char> = text.chars().collect();
    let mut whole = String::new();
    for piece in chars.chunks(step) {
        let piece: String = piece.iter().collect();
        whole.push_str(&piece);
        trajectory.append_parts(&[Part::scaffold(&piece)], Provenance::Env).expect("known");
        let expected = tokenizer.encode(&whole, AddedMode::Parse).expect("known");
        assert_eq!(trajectory.ids(), expected, "{whole:?}");
    }
}

#[test]
fn a_newline_after_many_spaces_joins_them_to_the_one_before() {
    let tokenizer = Arc::new(crafted(&[["Ċ", "Ġ"], ["Ġ", "Ġ"]], &[], false));
    for step in [1, 2, 7] {
        follow(&tokenizer, &format!("\n{}\n{}x", " ".repeat(300), " ".repeat(200)), step);
    }
}

#[test]
fn a_word_that_comes_to_stand_in_the_vocabulary_skips_the_merges() {
    let entries = ["a".repeat(250), "ab".repeat(150)];
    let tokenizer = Arc::new(crafted(&[["a", "b"], ["a", "a"]], &entries, true));
    for step in [1, 2, 5] {
        follow(&tokenizer, &"a".repeat(600), step);
        follow(&tokenizer, &"ab".repeat(300), step);
    }
}

#[test]
fn an_added_token_that_comes_into_being_in_a_long_word_is_cut_out() {
    let mut json: Value = serde_json::from_str(
        &std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../python/abut/demo/assets/tokenizer.json"
        ))
        .expect("it comes with abut"),
    )
    .expect("a file");
    let added = |id: u32, content: &str, single_word: bool| {
        json!({"id": id, "content": content, "single_word": single_word, "lstrip": false,
            "rstrip": false, "normalized": false, "special": false})
    };
    json["added_tokens"] = json!([added(9000, "ababababc", false), added(9001, "xyz", true)]);
    json["normalizer"] = Value::Null;
    let tokenizer = Tokenizer::from_json(&json.to_string(), &Overrides::default());
    let tokenizer = Arc::new(tokenizer.expect("a tokenizer"));
    for step in [1, 3, 8] {
        let (long, other) = ("ab".repeat(90), "xyz".repeat(60));
        follow(&tokenizer, &format!("{long}c{long}{long}cxyz{other}{other} xyz {other}"), step);
        follow(&tokenizer, &format!("{other}ababababc{other} xyz{other}"), step);
    }
}

#[test]
fn a_word_behind_an_added_token_that_is_not_hard_begins_there() {
    // It is not hard, since it could begin at its own last character.
    let added = json!([{"id": 9000, "content": "aqqqqqa", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": false}]);
    let tokenizer = with_added(&[["b", "b"]], &["b".repeat(250)], true, added);
    assert!(!tokenizer.is_hard(9000));
    let tokenizer = Arc::new(tokenizer);
    for step in [1, 2, 6] {
        let (before, after) = ("b".repeat(300), "b".repeat(350));
        follow(&tokenizer, &format!("{before}aqqqqqa{after}aqqqqqa{after}"), step);
    }
}
