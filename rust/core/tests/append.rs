//! Text in pieces is the whole text: random tokenizers, compared with `tokenizers` after every
//! append. `ABUT_FUZZ_APPENDS` says how many; `ABUT_FUZZ_SEED` where to begin.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use abut_core::{AddedMode, Overrides, Part, Provenance, SeamKind, Tokenizer, Trajectory};
use support::Oracle;
use support::random::{Rng, text, tokenizer};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Appends random pieces to a new trajectory; says how each was decided.
fn append_in_pieces(
    rng: &mut Rng,
    ours: &Arc<Tokenizer>,
    oracle: &Oracle,
    chars: &[char],
    kinds: &mut BTreeMap<&'static str, u64>,
) -> Result<u64, String> {
    let mut whole = String::new();
    let mut trajectory = Trajectory::new(ours.clone());
    let mut appends = 0;
    for _ in 0..1 + rng.below(12) {
        let piece = text(rng, chars, 5);
        let before = trajectory.ids().to_vec();
        whole.push_str(&piece);
        let Some(expected) = oracle.encode(&whole) else { break };
        let seam = trajectory
            .append_parts(&[Part::scaffold(&piece)], Provenance::Prompt)
            .map_err(|error| format!("{whole:?} + {piece:?}: {error}"))?;
        let told = [&before[..before.len() - seam.drop], &seam.ids[..]].concat();
        if trajectory.ids() != expected || told != expected {
            return Err(format!(
                "{whole:?} ends in {piece:?}: {:?}, told {told:?}, expected {expected:?}",
                trajectory.ids()
            ));
        }
        *kinds.entry(seam.kind.as_str()).or_default() += 1;
        appends += 1;
        if rng.one_in(4) {
            let (a, b) = whole.split_at(whole.len() - piece.len());
            two_texts(ours, oracle, a, b)?;
        }
    }
    Ok(appends)
}

fn two_texts(ours: &Tokenizer, oracle: &Oracle, a: &str, b: &str) -> Result<(), String> {
    let encode = |text: &str| oracle.encode(text);
    let whole = [a, b].concat();
    let (Some(left), Some(right), Some(joined)) = (encode(a), encode(b), encode(&whole)) else {
        return Ok(());
    };
    let seam = ours.seam(a, b, AddedMode::Parse).map_err(|e| e.to_string())?;
    let told = [&left[..left.len() - seam.drop], &seam.ids[..]].concat();
    let additive = ours.is_additive(a, b, AddedMode::Parse).map_err(|e| e.to_string())?;
    if told != joined || additive != ([left, right].concat() == joined) {
        return Err(format!("{a:?} | {b:?}: {seam:?}, additive {additive}, joined {joined:?}"));
    }
    Ok(())
}

#[test]
fn text_in_pieces_is_the_whole_text() {
    let seed = setting("ABUT_FUZZ_SEED", 1);
    let wanted = setting("ABUT_FUZZ_APPENDS", 30_000);
    std::panic::set_hook(Box::new(|_| {})); // the oracle's own panics are expected
    let (mut appends, mut tokenizers) = (0, 0u64);
    let mut kinds = BTreeMap::new();
    while appends < wanted {
        let mut rng = Rng(seed.wrapping_add(tokenizers << 32));
        let (config, chars) = tokenizer(&mut rng);
        tokenizers += 1;
        let json = config.to_string();
        let (Ok(ours), Ok(oracle)) = (
            Tokenizer::from_json(&json, &Overrides::default()),
            json.parse::<tokenizers::Tokenizer>(),
        ) else {
            continue;
        };
        let (ours, oracle) = (Arc::new(ours), Oracle::new(oracle));
        for _ in 0..100 {
            match append_in_pieces(&mut rng, &ours, &oracle, &chars, &mut kinds) {
                Ok(more) => appends += more,
                Err(problem) => {
                    println!("tokenizer {} of seed {seed}: {json}\n{problem}", tokenizers - 1);
                    panic!("{problem}");
                }
            }
        }
    }
    println!("seed {seed}: {appends} appends to {tokenizers} tokenizers equal, {kinds:?}");
    assert!(kinds[SeamKind::Window.as_str()] > wanted / 10, "{kinds:?}");
}
