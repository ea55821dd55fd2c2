//! The control tokens that the model itself could write.

use std::ops::RangeInclusive;

use rustc_hash::FxHashMap;

/// Their texts, by id.
#[derive(Debug)]
pub(crate) struct Mintable {
    texts: FxHashMap<u32, String>,
    /// From the lowest id to the highest; empty if there are no tokens.
    ids: RangeInclusive<u32>,
}

impl Mintable {
    pub fn new(tokens: impl IntoIterator<Item = (u32, String)>) -> Self {
        let texts: FxHashMap<u32, String> = tokens.into_iter().collect();
        let (lowest, highest) = (texts.keys().min(), texts.keys().max());
        // One token above the lowest id of all is no id.
        let ids = lowest.copied().unwrap_or(1)..=highest.copied().unwrap_or(0);
        Self { texts, ids }
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    pub fn text_of(&self, id: u32) -> Option<&String> {
        self.texts.get(&id)
    }

    /// True if one of these tokens is among `ids`. Control tokens are mostly the first of a vocabulary or
    /// the last, so many ids at once are compared with two bounds before any of them is looked up. That
    /// took an eighth off the time of Tekken's encoder.
    pub fn is_any_of(&self, ids: &[u32]) -> bool {
        const AT_ONCE: usize = 256;
        ids.chunks(AT_ONCE).any(|ids| {
            let is_near = |near: bool, id: &u32| near | self.ids.contains(id);
            ids.iter().fold(false, is_near) && ids.iter().any(|id| self.texts.contains_key(id))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_wherever_it_stands() {
        let none = Mintable::new([]);
        assert!(none.is_empty() && !none.is_any_of(&[0, 1, 2, u32::MAX]));
        let some = Mintable::new([(7, "a".to_owned()), (9, "b".to_owned())]);
        assert!(!some.is_any_of(&[]) && !some.is_any_of(&[0, 6, 8, 10, u32::MAX]));
        for place in [0, 255, 256, 999] {
            for (id, found) in [(7, true), (8, false), (9, true)] {
                let mut ids = [1000; 1000];
                ids[place] = id;
                assert_eq!(some.is_any_of(&ids), found, "{id} at {place}");
            }
        }
        assert_eq!(some.text_of(9).map(String::as_str), Some("b"));
        assert_eq!(some.text_of(8), None);
    }
}
