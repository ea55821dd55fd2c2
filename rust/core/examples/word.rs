//! Times one-character appends.
#![allow(missing_docs, clippy::all, clippy::pedantic, clippy::unwrap_used, clippy::print_stdout)]
use abut_core::*;
use std::sync::Arc;
use std::time::Instant;
const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
fn main() {
    let folder = std::env::var("ABUT_TOKENIZERS").unwrap();
    let read = |n: &str| std::fs::read_to_string(format!("{folder}/{n}/tokenizer.json")).unwrap();
    let mut llama: serde_json::Value = serde_json::from_str(&read("qwen3")).unwrap();
    llama["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = LLAMA.into();
    llama["model"]["ignore_merges"] = true.into();
    llama["normalizer"] = serde_json::Value::Null;
    let files = [
        ("llama3-like", llama.to_string()),
        ("qwen3", read("qwen3")),
        ("mistral", read("mistral_v3")),
    ];
    let n: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let only = std::env::args().nth(2);
    let mut s = 7u64;
    let mut below = move |n: usize| {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((s >> 33) as usize) % n
    };
    let b64: Vec<char> =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".chars().collect();
    let emoji: Vec<char> = "😀😁🤖🧠🥳🚀🎉🔥✨🫠".chars().collect();
    let gen_ = |f: &mut dyn FnMut(usize) -> char| -> String { (0..n).map(|i| f(i)).collect() };
    let texts: Vec<(&str, String)> = vec![
        ("base64", gen_(&mut |_| b64[below(64)])),
        ("hex", gen_(&mut |_| b"0123456789abcdef"[below(16)] as char)),
        ("letters", gen_(&mut |_| b64[26 + below(26)])),
        ("aaaa", "a".repeat(n)),
        ("emoji", gen_(&mut |_| emoji[below(10)])),
        ("one emoji", "😀".repeat(n)),
        ("zwj", "👩🏽\u{200d}👩\u{200d}👧\u{fe0f}".chars().cycle().take(n).collect()),
        ("spaces", " ".repeat(n)),
        ("newline, spaces", format!("\n{}", " ".repeat(n - 1))),
        ("digits", gen_(&mut |_| b"0123456789"[below(10)] as char)),
        ("cjk", gen_(&mut |_| char::from_u32(0x4e00 + below(5000) as u32).unwrap())),
        ("marks", format!("e{}", "\u{301}".repeat(n - 1))),
        ("punct", gen_(&mut |_| b"!@#$%^&*()-=+[]{};:,./<>?"[below(25)] as char)),
        ("erer", "er".repeat(n / 2)),
        ("words", "the quick brown fox jumps ".chars().cycle().take(n).collect()),
    ];
    for (name, json) in files {
        let t = Arc::new(Tokenizer::from_json(&json, &Overrides::default()).unwrap());
        for (kind, text) in &texts {
            if only.as_ref().is_some_and(|o| !kind.contains(o.as_str())) {
                continue;
            }
            let mut tr = Trajectory::new(t.clone());
            let began = Instant::now();
            let mut buf = [0; 4];
            let mut done = 0;
            for c in text.chars() {
                tr.append_parts(&[Part::content(c.encode_utf8(&mut buf))], Provenance::Env)
                    .unwrap();
                done += 1;
                if began.elapsed().as_secs() > 30 {
                    break;
                }
            }
            let took = began.elapsed().as_secs_f64();
            let same = done < n || tr.ids() == t.encode(text, AddedMode::Text).unwrap();
            println!(
                "{name:12} {kind:16} {done:7} appends {took:8.3} s  {:6.1} us/append  tokens {} same {same}",
                took * 1e6 / done as f64,
                tr.ids().len()
            );
        }
    }
}
