//! Text in pieces is the whole text: compared with `tokenizers` after every append.
//!
//! `make fuzz` goes on for as long as it is told. `ABUT_FUZZ_SEED` says where to begin,
//! `ABUT_FUZZ_APPENDS` or `ABUT_FUZZ_SECONDS` where to end.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abut_core::{
    AddedMode, Edge, Overrides, Part, PartKind, Provenance, SeamKind, Tokenizer, Trajectory,
};
use serde_json::Value;
use support::Oracle;
use support::random::{PATTERNS, Rng, everything, run, text, tokenizer};

type Outcome = Result<(), String>;

/// One tokenizer, the oracle that is told the same file, and the characters of its texts.
struct Case {
    ours: Arc<Tokenizer>,
    oracle: Oracle,
    chars: Vec<char>,
}

impl Case {
    /// `None` where the file is refused.
    fn new(json: &str, chars: Vec<char>) -> Option<Self> {
        let ours = Arc::new(Tokenizer::from_json(json, &Overrides::default()).ok()?);
        Some(Self { ours, oracle: Oracle::new(json.parse().ok()?), chars })
    }

    /// Scaffold in pieces against `tokenizers`.
    fn append_text(&self, rng: &mut Rng, counts: &mut Counts) -> Outcome {
        let mut whole = String::new();
        let mut trajectory = Trajectory::new(self.ours.clone());
        for _ in 0..=rng.below(12) {
            let piece = text(rng, &self.chars, 5);
            let before = trajectory.ids().to_vec();
            whole.push_str(&piece);
            let Some(expected) = self.oracle.encode(&whole) else { break };
            let seam = trajectory
                .append_parts(&[Part::scaffold(&piece)], Provenance::Prompt)
                .map_err(|error| format!("{whole:?} + {piece:?}: {error}"))?;
            let told = [&before[..before.len() - seam.drop], &seam.ids[..]].concat();
            if trajectory.ids() != expected || told != expected {
                let ids = trajectory.ids();
                return Err(format!(
                    "{whole:?}, last {piece:?}: {ids:?} told {told:?}, not {expected:?}"
                ));
            }
            *counts.kinds.entry(seam.kind.as_str()).or_default() += 1;
            if rng.one_in(12) {
                let (a, b) = whole.split_at(whole.len() - piece.len());
                self.judge_two_texts(a, b)?;
                counts.pairs += 1;
            }
        }
        Ok(())
    }

    /// A long run of characters, which may have no anchor, in pieces: against `tokenizers` where it is
    /// all scaffold, else against the parts as a whole. Now and then a fork goes on with it.
    fn append_run(&self, rng: &mut Rng, counts: &mut Counts) -> Outcome {
        let all = run(rng, &self.chars);
        let mut trajectory = Trajectory::new(self.ours.clone());
        let mixed = rng.one_in(4);
        let mut parts: Vec<(PartKind, String)> = Vec::new();
        let mut rest = all.as_str();
        let most = rng.pick(&[1, 1, 3, 9]);
        while !rest.is_empty() {
            let first = if parts.is_empty() { rng.below(200) } else { rng.below(most) };
            let end = rest.char_indices().nth(first + 1).map_or(rest.len(), |(at, _)| at);
            let (piece, after) = rest.split_at(end);
            rest = after;
            let is_content = mixed && rng.one_in(2);
            let kind = if is_content { PartKind::Content } else { PartKind::Scaffold };
            parts.push((kind, piece.to_owned()));
            let seen: Vec<Part<'_>> =
                parts.iter().map(|(kind, text)| Part { kind: *kind, text }).collect();
            let expected = if mixed {
                self.ours.encode_parts(&seen, Edge::Start).ok()
            } else {
                self.oracle.encode(&seen.iter().map(|part| part.text).collect::<String>())
            };
            let Some(expected) = expected else { break };
            trajectory
                .append_parts(&seen[seen.len() - 1..], Provenance::Env)
                .map_err(|error| format!("{seen:?}: {error}"))?;
            if trajectory.ids() != expected {
                return Err(format!("{seen:?}: {:?}, not {expected:?}", trajectory.ids()));
            }
            counts.runs += 1;
            counts.open += u64::from(trajectory.open_bytes() > 128);
            // At 0 a fork is empty, also where text has no tokens yet.
            if rng.one_in(40) && !expected.is_empty() {
                trajectory = trajectory.fork(trajectory.ids().len()).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    /// `seam` and `is_additive` against three independent encodes.
    fn judge_two_texts(&self, a: &str, b: &str) -> Outcome {
        let encode = |text: &str| self.oracle.encode(text);
        let (Some(left), Some(right), Some(joined)) =
            (encode(a), encode(b), encode(&[a, b].concat()))
        else {
            return Ok(());
        };
        let seam = self.ours.seam(a, b, AddedMode::Parse).map_err(|e| e.to_string())?;
        let told = [&left[..left.len() - seam.drop], &seam.ids[..]].concat();
        let additive = self.ours.is_additive(a, b, AddedMode::Parse).map_err(|e| e.to_string())?;
        if told != joined || additive != ([left, right].concat() == joined) {
            return Err(format!("{a:?} | {b:?}: {seam:?}, additive {additive}, not {joined:?}"));
        }
        Ok(())
    }

    /// Scaffold and content in pieces against the parts as a whole; content mints nothing.
    fn append_parts(&self, rng: &mut Rng, counts: &mut Counts) -> Outcome {
        let kinds = if rng.one_in(2) {
            &[PartKind::Content, PartKind::Scaffold][..]
        } else {
            &[PartKind::Content]
        };
        let parts: Vec<(PartKind, String)> =
            (0..=rng.below(10)).map(|_| (rng.pick(kinds), text(rng, &self.chars, 4))).collect();
        let all: Vec<Part<'_>> =
            parts.iter().map(|(kind, text)| Part { kind: *kind, text }).collect();
        let mut trajectory = Trajectory::new(self.ours.clone());
        for end in 1..=all.len() {
            // A control token of one character that the vocabulary can write in no other way.
            let Ok(expected) = self.ours.encode_parts(&all[..end], Edge::Start) else { break };
            trajectory
                .append_parts(&all[end - 1..end], Provenance::Env)
                .map_err(|error| format!("{:?}: {error}", &all[..end]))?;
            if trajectory.ids() != expected {
                return Err(format!("{:?}: {:?}, not {expected:?}", &all[..end], trajectory.ids()));
            }
            counts.parts += 1;
        }
        let is_control = |id: &u32| {
            let mut added = self.ours.added_tokens().iter();
            added.any(|token| token.id == *id && token.control && token.content != "?")
        };
        if kinds.len() == 1 && trajectory.ids().iter().any(is_control) {
            return Err(format!("{all:?} became a control token: {:?}", trajectory.ids()));
        }
        Ok(())
    }
}

/// The number of tries for each random tokenizer.
const ROUNDS: usize = 500;

#[derive(Debug, Default)]
struct Counts {
    tokenizers: u64,
    /// By the encoder that they have.
    encoders: BTreeMap<&'static str, u64>,
    /// Appends of text, by how their seam was decided.
    kinds: BTreeMap<&'static str, u64>,
    /// Appends of scaffold and content.
    parts: u64,
    /// Pairs of texts.
    pairs: u64,
    /// Appends to long runs, and after how many of them much was open.
    runs: u64,
    open: u64,
}

impl Counts {
    fn appends(&self) -> u64 {
        self.kinds.values().sum::<u64>() + self.parts + self.runs
    }
}

fn try_case(case: &Case, rng: &mut Rng, rounds: usize, counts: &mut Counts) -> Outcome {
    for _ in 0..rounds {
        if rng.one_in(16) {
            case.append_run(rng, counts)?;
        } else if rng.one_in(4) {
            case.append_parts(rng, counts)?;
        } else {
            case.append_text(rng, counts)?;
        }
    }
    counts.tokenizers += 1;
    *counts.encoders.entry(case.ours.profile().encoder).or_default() += 1;
    Ok(())
}

/// Random tokenizers until `stop`, each with a seed of its own that a failure prints.
fn fuzz(seed: u64, counts: &mut Counts, stop: impl Fn(&Counts) -> bool) {
    std::panic::set_hook(Box::new(|_| {})); // the oracle's own panics are expected
    for number in 0u64.. {
        if stop(counts) {
            break;
        }
        let mut rng = Rng(seed.wrapping_add(number << 32));
        let (config, chars) = tokenizer(&mut rng);
        let json = config.to_string();
        // On a thread of its own, with which `tokenizers` forgets the words that the oracle has
        // written: they took 1 kB for each append, and there may be 50 million.
        let problem = std::thread::scope(|scope| {
            let (counts, json) = (&mut *counts, &json);
            let run = move || try_case(&Case::new(json, chars)?, &mut rng, ROUNDS, counts).err();
            scope.spawn(run).join().expect("panics of the oracle are caught")
        });
        if let Some(problem) = problem {
            println!("tokenizer {number} of seed {seed}: {json}\n{problem}");
            panic!("{problem}");
        }
    }
}

/// The package's own tokenizer.
fn own_case() -> (String, Case) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    let json = std::fs::read_to_string(path).unwrap();
    ("abut's own".to_owned(), Case::new(&json, everything()).unwrap())
}

/// Real tokenizers, and Qwen3's vocabulary behind other pre-tokenizers.
fn real_cases() -> Vec<(String, Case)> {
    let Some(folder) = std::env::var_os("ABUT_TOKENIZERS") else { return vec![own_case()] };
    let read = |name: &str| -> String {
        std::fs::read_to_string(Path::new(&folder).join(name).join("tokenizer.json")).unwrap()
    };
    let qwen3 = read("qwen3");
    let mut files = vec![("mistral_v3".to_owned(), read("mistral_v3"))];
    let config: Value = serde_json::from_str(&qwen3).unwrap();
    for (index, pattern) in PATTERNS.iter().enumerate() {
        let mut other = config.clone();
        other["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = (*pattern).into();
        other["model"]["ignore_merges"] = (index % 2 == 1).into();
        files.push((format!("qwen3 with pattern {index}"), other.to_string()));
    }
    files.push(("qwen3".to_owned(), qwen3));
    // Those that `scripts/bench_tokenizers.py` makes.
    for name in ["llama3", "o200k", "tekken"] {
        if Path::new(&folder).join(name).is_dir() {
            files.push((name.to_owned(), read(name)));
        }
    }
    let case = |(name, json): (String, String)| (name, Case::new(&json, everything()).unwrap());
    files.into_iter().map(case).chain([own_case()]).collect()
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn text_in_pieces_is_the_whole_text() {
    let mut counts = Counts::default();
    try_case(&own_case().1, &mut Rng(1), 200, &mut counts).unwrap();
    fuzz(1, &mut counts, |counts| counts.appends() > 40_000);
    assert!(counts.kinds[SeamKind::Window.as_str()] > 5_000, "{counts:?}");
    assert!(counts.kinds[SeamKind::Merged.as_str()] > 500, "{counts:?}");
    assert!(counts.open > 2_000, "{counts:?}");
    assert!(counts.encoders.values().all(|count| *count >= 3), "{counts:?}");
    assert_eq!(counts.encoders.len(), 2, "{counts:?}");
}

#[test]
fn windows_are_flat_where_they_are_promised() {
    // Ordinary words: the run at the end is a word, whatever stands before it.
    for pattern in &PATTERNS[..8] {
        let json = serde_json::json!({
            "version": "1.0",
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern},
                "behavior": "Isolated", "invert": false},
            "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"},
        });
        let ours = Tokenizer::from_json(&json.to_string(), &Overrides::default()).unwrap();
        assert_eq!(ours.profile().opaque_because, None, "{pattern}");
        let seam = ours.seam("one two", " three", AddedMode::Parse).unwrap();
        assert_eq!(seam.kind, SeamKind::Window, "{pattern}");
    }
}

#[test]
#[ignore = "runs for ABUT_FUZZ_SECONDS, or until there were ABUT_FUZZ_APPENDS"]
fn fuzz_appends() {
    let seed = setting("ABUT_FUZZ_SEED").unwrap_or_else(|| std::process::id().into());
    println!("seed {seed}");
    let began = Instant::now();
    let seconds = setting("ABUT_FUZZ_SECONDS").map(Duration::from_secs);
    let most = setting("ABUT_FUZZ_APPENDS");
    let done = |counts: &Counts| match most {
        Some(most) => counts.appends() >= most,
        None => began.elapsed() >= seconds.unwrap_or(Duration::from_secs(10)),
    };
    let mut counts = Counts::default();
    for (name, case) in real_cases() {
        let mut rng = Rng(seed);
        try_case(&case, &mut rng, 1000, &mut counts).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let real = (counts.tokenizers, counts.appends());
    fuzz(seed, &mut counts, done);
    println!(
        "{} appends equal, {} of them to {} real tokenizers",
        counts.appends(),
        real.1,
        real.0
    );
    println!("{counts:?}");
}
