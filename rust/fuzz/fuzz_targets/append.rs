//! Text in pieces is the whole text, with inputs that coverage leads to.
//!
//! The first byte chooses one of 256 random tokenizers, those of the tests; 0xFF ends a piece.
#![no_main]

#[path = "../../core/tests/support/random.rs"]
#[allow(dead_code)]
mod random;

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use abut_core::{Overrides, Part, Provenance, Tokenizer, Trajectory};
use libfuzzer_sys::fuzz_target;

type Pair = Option<Rc<(Arc<Tokenizer>, tokenizers::Tokenizer)>>;

thread_local! {
    static LOADED: RefCell<HashMap<u8, Pair>> = RefCell::default();
}

/// `None` where the file is refused.
fn load(seed: u8) -> Pair {
    let (config, _) = random::tokenizer(&mut random::Rng(seed.into()));
    let json = config.to_string();
    let ours = Tokenizer::from_json(&json, &Overrides::default()).ok()?;
    Some(Rc::new((Arc::new(ours), json.parse().ok()?)))
}

/// `None` where `tokenizers` panics, as it does on some files and texts: there is no answer to
/// compare with then, and libFuzzer must not hear of it.
fn encode(oracle: &tokenizers::Tokenizer, text: &str) -> Option<Vec<u32>> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let encoded = catch_unwind(AssertUnwindSafe(|| oracle.encode_fast(text, false)));
    std::panic::set_hook(hook);
    Some(encoded.ok()?.ok()?.get_ids().to_vec())
}

fuzz_target!(|input: &[u8]| {
    let Some((&seed, text)) = input.split_first() else { return };
    let pair = LOADED.with_borrow_mut(|all| all.entry(seed).or_insert_with(|| load(seed)).clone());
    let Some(pair) = pair else { return };
    let (ours, oracle) = &*pair;
    let mut trajectory = Trajectory::new(ours.clone());
    let mut whole = String::new();
    for piece in text.split(|&byte| byte == 0xFF) {
        let piece = String::from_utf8_lossy(piece);
        whole.push_str(&piece);
        let Some(expected) = encode(oracle, &whole) else { return };
        let appended = trajectory.append_parts(&[Part::scaffold(&piece)], Provenance::Env);
        appended.expect("what tokenizers can write can be appended");
        assert_eq!(trajectory.ids(), expected, "tokenizer {seed}, {whole:?}");
    }
});
