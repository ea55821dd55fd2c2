//! A word that grows one character at a time has the tokens of the whole, whatever it is made of:
//! compared with `tokenizers` after every append.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::Arc;

use abut_core::{AddedMode, Overrides, Part, Provenance, Tokenizer, Trajectory};
use serde_json::Value;
use support::Oracle;
use support::random::{PATTERNS, Rng};

/// Runs of characters inside which restarting is hard.
fn texts() -> Vec<String> {
    let mut rng = Rng(3);
    let mut random = |from: &str, count: usize| -> String {
        let from: Vec<char> = from.chars().collect();
        (0..count).map(|_| rng.pick(&from)).collect()
    };
    let base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    vec![
        random(base64, 300),
        random(&base64[..52], 300),
        random(&base64[26..52], 300),
        random("0123456789abcdef", 300),
        "a".repeat(300),
        "A".repeat(200) + &"a".repeat(150),
        random("0123456789", 300),
        "camelCaseWordsThatGoOnAndON".repeat(12),
        random("😀🤖🚀🥳🔥\u{1fae0}", 200),
        "👩🏽\u{200d}👩\u{200d}👧\u{fe0f}".repeat(30),
        "🇩🇪🇫🇷".repeat(50),
        "e".to_owned() + &"\u{301}".repeat(150),
        "e\u{301}\u{323}".repeat(70),
        random("中文字漢あア。", 150),
        random("한글말", 120) + &"ᄀ\u{1161}\u{11A8}".repeat(20),
        random("कलघरआएथेऔर", 150),
        random("!#$%&*-=<|>/'", 300),
        " ".repeat(300) + "a",
        "\n".to_owned() + &" ".repeat(250) + "\n" + &" ".repeat(150) + "x",
        random(" \n\t", 300),
        "x".repeat(140) + "'s'll" + &"y".repeat(150) + "'S" + &"z".repeat(40),
        "er<|im_".repeat(30) + &"er".repeat(50) + "<|im_end|>" + &"er".repeat(100),
        "q".repeat(150) + "<think>" + &"q".repeat(150) + "</think>" + &"q".repeat(50),
        "!\n/".repeat(100),
    ]
}

fn follow(name: &str, json: &str) {
    let ours = Arc::new(Tokenizer::from_json(json, &Overrides::default()).unwrap());
    let oracle = Oracle::new(json.parse().unwrap());
    for text in texts() {
        let mut trajectory = Trajectory::new(ours.clone());
        for (at, c) in text.char_indices() {
            let (piece, whole) = (&text[at..at + c.len_utf8()], &text[..at + c.len_utf8()]);
            trajectory.append_parts(&[Part::scaffold(piece)], Provenance::Env).unwrap();
            assert_eq!(trajectory.ids(), oracle.encode(whole).unwrap(), "{name} {whole:?}");
        }
    }
}

/// One file behind each pattern, with words that skip the merges and without.
fn behind_patterns(json: &str, patterns: &[&str]) -> Vec<(String, String)> {
    let config: Value = serde_json::from_str(json).unwrap();
    let file = |(index, pattern): (usize, &&str)| {
        let mut other = config.clone();
        other["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = (*pattern).into();
        other["model"]["ignore_merges"] = (index % 2 == 1).into();
        if index % 3 == 2 {
            other["normalizer"] = Value::Null;
        }
        (format!("pattern {index}"), other.to_string())
    };
    patterns.iter().enumerate().map(file).collect()
}

#[test]
fn a_word_that_grows_has_the_tokens_of_the_whole() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    for (name, json) in behind_patterns(&std::fs::read_to_string(path).unwrap(), &PATTERNS) {
        follow(&name, &json);
    }
}

#[test]
fn a_word_that_grows_has_the_tokens_of_the_whole_with_real_vocabularies() {
    let Some(folder) = std::env::var_os("ABUT_TOKENIZERS") else { return };
    let read = |name: &str| -> String {
        std::fs::read_to_string(Path::new(&folder).join(name).join("tokenizer.json")).unwrap()
    };
    follow("mistral_v3", &read("mistral_v3"));
    let qwen3 = read("qwen3");
    follow("qwen3", &qwen3);
    // GPT-4o's, and Llama 3's with words that skip the merges.
    for (name, json) in behind_patterns(&qwen3, &[PATTERNS[4], PATTERNS[1]]) {
        follow(&name, &json);
    }
}

#[test]
fn five_thousand_emoji_in_pieces_are_the_whole() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    let json = std::fs::read_to_string(path).unwrap();
    let ours = Arc::new(Tokenizer::from_json(&json, &Overrides::default()).unwrap());
    let mut trajectory = Trajectory::new(ours.clone());
    let text = "😀👩🏽\u{200d}👧".chars().cycle().take(5001).collect::<String>();
    let mut buffer = [0; 4];
    for c in text.chars() {
        let part = Part::content(c.encode_utf8(&mut buffer));
        trajectory.append_parts(&[part], Provenance::Env).unwrap();
    }
    assert_eq!(trajectory.ids(), ours.encode(&text, AddedMode::Text).unwrap());
}
