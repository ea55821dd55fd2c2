//! A tokenizer that is dropped leaves no memory behind that loading it took.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use abut_core::{Overrides, Tokenizer};
use support::random::{Rng, tokenizer};

thread_local! {
    /// Allocations of this thread that have not been freed.
    static IN_USE: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.set(IN_USE.get() + 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.set(IN_USE.get() - 1);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The name of its encoder; `None` where the file is refused.
fn load(json: &str) -> Option<&'static str> {
    Some(Tokenizer::from_json(json, &Overrides::default()).ok()?.profile().encoder)
}

#[test]
fn a_dropped_tokenizer_leaves_nothing() {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    let own = std::fs::read_to_string(own).unwrap();
    let random = (0..300).map(|seed| tokenizer(&mut Rng(seed)).0.to_string());
    let mut encoders = BTreeMap::new();
    for json in std::iter::once(own).chain(random) {
        load(&json); // tables that are made once
        let before = IN_USE.get();
        let Some(encoder) = load(&json) else { continue };
        let left = IN_USE.get() - before;
        assert_eq!(left, 0, "allocations that stay of {json}");
        *encoders.entry(encoder).or_insert(0) += 1;
    }
    assert!(encoders["fast"] > 100 && encoders["hf"] > 100, "{encoders:?}");
}
