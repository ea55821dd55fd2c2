//! A trajectory is what the engine saw: whole-text exact, frozen, aligned.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use abut_core::{
    AddedMode, Edge, Error, Overrides, Part, PartKind, Provenance, SeamKind, Tokenizer, Trajectory,
};
use proptest::prelude::*;
use support::{spec, text};

fn demo() -> Arc<Tokenizer> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    let json = std::fs::read_to_string(path).unwrap();
    Arc::new(Tokenizer::from_json(&json, &Overrides::default()).unwrap())
}

fn part(kind: PartKind, text: &str) -> Part<'_> {
    Part { kind, text }
}

fn any_part() -> impl Strategy<Value = (PartKind, String)> {
    (prop::sample::select(vec![PartKind::Scaffold, PartKind::Content]), text())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn appended_parts_equal_the_whole_after_every_append(
        spec in spec(true),
        parts in prop::collection::vec(any_part(), 1..6),
    ) {
        let tokenizer = Arc::new(spec.ours());
        let mut trajectory = Trajectory::new(tokenizer.clone());
        for end in 1..=parts.len() {
            let (kind, text) = &parts[end - 1];
            let before = trajectory.ids().to_vec();
            let seam = trajectory.append_parts(&[part(*kind, text)], Provenance::Env);
            let whole: Vec<_> = parts[..end].iter().map(|(kind, text)| part(*kind, text)).collect();
            let expected = tokenizer.encode_parts(&whole, Edge::Start);
            // A control token of one character that the vocabulary can write in no other way.
            prop_assert_eq!(seam.is_err(), expected.is_err());
            prop_assume!(seam.is_ok());
            let (seam, expected) = (seam.unwrap(), expected.unwrap());
            prop_assert_eq!(trajectory.ids(), &expected[..]);
            let told = [&before[..before.len() - seam.drop], &seam.ids[..]].concat();
            prop_assert_eq!(told, expected);
            prop_assert_eq!(trajectory.provenance().len(), trajectory.ids().len());
        }
    }

    #[test]
    fn frozen_tokens_never_change(
        spec in spec(true),
        before in text(),
        after in text(),
        sample in prop::collection::vec(0u32..6, 0..5),
    ) {
        let tokenizer = Arc::new(spec.ours());
        let mut trajectory = Trajectory::new(tokenizer);
        trajectory.append_parts(&[Part::scaffold(&before)], Provenance::Prompt).unwrap();
        let request = trajectory.request().to_vec();
        prop_assume!(!request.is_empty());
        trajectory.append_sampled(&sample, &vec![-0.5; sample.len()]).unwrap();
        trajectory.append_parts(&[Part::scaffold(&after)], Provenance::Env).unwrap();
        prop_assert!(trajectory.ids().starts_with(&[request, sample].concat()));
        for (logprob, provenance) in trajectory.logprobs().iter().zip(trajectory.provenance()) {
            prop_assert_eq!(logprob.is_finite(), *provenance == Provenance::Sampled as u8);
        }
    }

    #[test]
    fn a_fork_goes_on_as_the_trajectory_built_up_to_it(
        spec in spec(true),
        turns in prop::collection::vec(
            (any_part(), prop::collection::vec(0u32..6, 0..4), any_part()),
            1..4,
        ),
        after in prop::collection::vec(any_part(), 1..4),
    ) {
        let mut trajectory = Trajectory::new(Arc::new(spec.ours()));
        // The trajectory at each fork point; where a turn starts, at the first request there.
        let mut was = BTreeMap::from([(0, trajectory.clone())]);
        let mut starts = HashSet::new();
        for (before, sample, behind) in &turns {
            for (kind, text) in [before, behind] {
                let part = [part(*kind, text)];
                prop_assume!(trajectory.append_parts(&part, Provenance::Env).is_ok());
            }
            let start = trajectory.request().len();
            if start > 0 {
                if starts.insert(start) {
                    was.insert(start, trajectory.clone());
                }
                trajectory.append_sampled(sample, &vec![-0.5; sample.len()]).unwrap();
                was.entry(trajectory.ids().len()).or_insert(trajectory.clone());
            }
        }
        let (kind, text) = &after[0];
        prop_assume!(trajectory.append_parts(&[part(*kind, text)], Provenance::Env).is_ok());
        let length = trajectory.ids().len();
        if length > 0 && !starts.contains(&length) {
            was.insert(length, trajectory.clone());
        }
        for (point, mut was) in was {
            let mut fork = trajectory.fork(point).unwrap();
            for (kind, text) in &after {
                let [sampled, expected] = [&fork, &was]
                    .map(|one| one.clone().append_sampled(&[0], &[-0.5]).ok());
                prop_assert_eq!(sampled, expected, "a sample at {}", point);
                let part = [part(*kind, text)];
                let [seam, expected] = [&mut fork, &mut was]
                    .map(|one| one.append_parts(&part, Provenance::Env));
                prop_assert_eq!(seam, expected, "text at {}", point);
                prop_assert_eq!(fork.ids(), was.ids());
                prop_assert_eq!(fork.provenance(), was.provenance());
                prop_assert_eq!(fork.turns(), was.turns());
            }
        }
    }

    #[test]
    fn content_mints_no_control_token(spec in spec(true), text in text()) {
        let tokenizer = spec.ours();
        let controls: Vec<u32> =
            tokenizer.added_tokens().iter().filter(|t| t.control).map(|t| t.id).collect();
        match tokenizer.encode(&text, AddedMode::Text) {
            Ok(ids) => prop_assert!(!ids.iter().any(|id| controls.contains(id)), "{ids:?}"),
            // A token of one character that the vocabulary can write in no other way.
            Err(error) => prop_assert!(matches!(error, Error::CannotAvoid { .. }), "{error}"),
        }
    }
}

#[test]
fn a_merge_into_sampled_tokens_is_reported_and_not_applied() {
    let tokenizer = demo();
    let mut trajectory = Trajectory::new(tokenizer.clone());
    trajectory
        .append_parts(&[Part::scaffold("<|im_start|>assistant\n")], Provenance::Prompt)
        .unwrap();
    let request = trajectory.request().to_vec();
    let sample = tokenizer.encode("\nyes", AddedMode::Text).unwrap();
    let seam = trajectory.append_sampled(&sample, &vec![-1.0; sample.len()]).unwrap();
    let canonical = tokenizer.encode("<|im_start|>assistant\n\nyes", AddedMode::Parse).unwrap();
    assert_ne!([request.clone(), sample.clone()].concat(), canonical);
    assert_eq!((seam.kind, seam.exact, seam.drop), (SeamKind::Merged, false, 0));
    let told = seam.canonical_ids.unwrap();
    assert!(canonical.ends_with(&told));
    assert_eq!(trajectory.ids(), [request, sample].concat());
}

/// Bytes behind the pattern of Tekken, in which a mark is a letter and a sign at once: after signs
/// the mark of `'\u{369}<n>` goes with them, and only then is the `<` in another word.
#[test]
fn a_merge_begins_at_the_first_token_that_differs() {
    let split = support::random::PATTERNS[4].replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "");
    let bytes: BTreeMap<_, _> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet()
        .into_iter()
        .zip(0..)
        .collect();
    let mut vocab: BTreeMap<String, u32> =
        bytes.iter().map(|(byte, id)| (byte.to_string(), *id)).collect();
    vocab.insert("<n".to_owned(), 256);
    let json = serde_json::json!({
        "version": "1.0",
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": false}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["<", "n"]]},
    });
    let tokenizer = Tokenizer::from_json(&json.to_string(), &Overrides::default()).unwrap();
    let mut trajectory = Trajectory::new(Arc::new(tokenizer));
    let mut append = |text| {
        trajectory.append_parts(&[Part::content(text)], Provenance::Env).unwrap();
        trajectory.request();
    };
    append("<mask>|>");
    let seam = trajectory.append_parts(&[Part::content("'\u{369}<n>")], Provenance::Env).unwrap();
    let id = |text: &str| vocab[text];
    // `'` and both bytes of the mark are the same tokens in the whole.
    assert_eq!(seam.ids[3..], [id("<n"), id(">")]);
    assert_eq!(seam.canonical_ids.unwrap(), [id("<"), id("n"), id(">")]);
    let merge = seam.merge.unwrap();
    assert_eq!((merge.left_ids, merge.left_text), (vec![], String::new()));
    assert_eq!((merge.right_ids, merge.right_text), (vec![id("<n")], "<n".to_owned()));
    assert_eq!(merge.merged_ids, [id("<"), id("n")]);
}

#[test]
fn sampled_tokens_need_a_request_and_a_finite_logprob_each() {
    let mut trajectory = Trajectory::new(demo());
    assert!(matches!(trajectory.append_sampled(&[1], &[0.0]), Err(Error::NoRequest { .. })));
    trajectory.append_parts(&[Part::content("x")], Provenance::Prompt).unwrap();
    trajectory.request();
    let error = trajectory.append_sampled(&[1, 2], &[-0.5]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "turn 0 has 2 sampled ids but 1 logprobs\n\
         hint: pass one logprob per sampled id, the stop token included"
    );
    let error = trajectory.append_sampled(&[1, 2], &[-0.5, f32::NAN]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("turn 0: sampled token 1 (id 2) has logprob NaN, which is not finite")
    );
    let error = trajectory.append_sampled(&[1], &[0.5]).unwrap_err();
    assert!(error.to_string().contains("has logprob 0.5, which is above 0"));
    let error = trajectory.append_sampled(&[1], &[-9999.0]).unwrap_err();
    assert!(error.to_string().contains("vLLM's placeholder for a missing logprob"));
    assert!(matches!(
        trajectory.append_sampled(&[u32::MAX], &[-0.5]),
        Err(Error::UnknownId { .. })
    ));
    trajectory.append_sampled(&[1, 2], &[-0.5, -0.25]).unwrap();
    assert_eq!(trajectory.columns().unwrap().logprobs, [-0.5, -0.25]);
}

#[test]
fn provenance_says_who_wrote_each_token() {
    let mut trajectory = Trajectory::new(demo());
    let parts =
        [Part::scaffold("<|im_start|>user\n"), Part::content("1"), Part::scaffold("<|im_end|>\n")];
    trajectory.append_parts(&parts, Provenance::Prompt).unwrap();
    let prompt = Provenance::Prompt as u8;
    let scaffold = Provenance::Scaffold as u8;
    let (said, written): (Vec<u8>, Vec<u8>) =
        trajectory.provenance().iter().partition(|&&code| code == prompt);
    assert_eq!(said.len(), 1);
    assert!(written.iter().all(|&code| code == scaffold));
}

#[test]
fn a_broken_text_changes_nothing() {
    let json = r#"{"version": "1.0", "added_tokens": [{"id": 1, "content": "é"}],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "é": 1}, "unk_token": "a"}}"#;
    let tokenizer = Arc::new(Tokenizer::from_json(json, &Overrides::default()).unwrap());
    let mut trajectory = Trajectory::new(tokenizer);
    let error = trajectory.append_parts(&[Part::content("é")], Provenance::Env).unwrap_err();
    assert!(matches!(error, Error::CannotAvoid { .. }), "{error}");
    trajectory.append_parts(&[Part::content("a")], Provenance::Env).unwrap();
    assert_eq!(trajectory.ids(), [0]);
}

#[test]
fn an_override_that_names_no_added_token_is_refused() {
    let json = r#"{"version": "1.0", "added_tokens": [{"id": 1, "content": "<b>"}],
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;
    let load = |control: &[&str], textual: &[&str]| {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Tokenizer::from_json(json, &Overrides { control: set(control), textual: set(textual) })
            .map(|tokenizer| tokenizer.added_tokens()[0].control)
            .map_err(|error| error.to_string())
    };
    assert_eq!((load(&[], &[]), load(&["<b>"], &[])), (Ok(false), Ok(true)));
    let hint = "\nhint: profile() lists the added tokens and their classes";
    let unknown = format!("\"<c>\" is not an added token of this tokenizer{hint}");
    assert_eq!(load(&["<c>"], &[]), Err(unknown));
    assert_eq!(
        load(&["<b>"], &["<b>"]),
        Err(format!("\"<b>\" is in both control= and textual={hint}"))
    );
}
