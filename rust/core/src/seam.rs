//! The verdict on one seam: where one piece meets the next, did any token change?
//!
//! Invariant: a verdict is that of the whole texts, found in a window around the seam: from the
//! last anchor on the left to the first anchor on the right, beyond which nothing depends on it.

use serde::{Deserialize, Serialize};

use crate::encode::Edge;
use crate::error::Result;
use crate::parts::{Joined, Part};
use crate::tokenizer::{AddedMode, Tokenizer};

/// How a seam was decided, and what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeamKind {
    /// A hard token touches the seam: nothing can change.
    Barrier,
    /// Decided by a bounded window: exact.
    Window,
    /// The canonical tokens differ across the seam.
    Merged,
    /// No theory for this tokenizer: the segment was encoded again. Exact, but not flat.
    Opaque,
}

impl SeamKind {
    /// The name that users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Window => "window",
            Self::Merged => "merged",
            Self::Opaque => "opaque",
        }
    }
}

/// What happened where one piece met the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seam {
    /// How it was decided.
    pub kind: SeamKind,
    /// Appending in the right left context changed no earlier token.
    pub exact: bool,
    /// How many tokens before the seam were replaced.
    pub drop: usize,
    /// What stands there now: the left tokens without the last `drop`, then these.
    pub ids: Vec<u32>,
    /// Where the left side was frozen and the canonical tokens differ: what they would have been,
    /// from the first that is not what both sides have alone up to the next hard one.
    pub canonical_ids: Option<Vec<u32>>,
    /// What differs, on both sides of a merged seam; `None` where no canonical tokens exist.
    pub merge: Option<Merge>,
}

/// The tokens around a merged seam, from the first that differs to the last: tokens that stay are
/// on neither side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// The last tokens of the left side alone; empty where only the right changes.
    pub left_ids: Vec<u32>,
    /// Tokens of the right side alone: its first ones, where the left changes too.
    pub right_ids: Vec<u32>,
    /// What both together are instead.
    pub merged_ids: Vec<u32>,
    /// The text of `left_ids`.
    pub left_text: String,
    /// The text of `right_ids`.
    pub right_text: String,
}

impl Merge {
    fn new(tokenizer: &Tokenizer, left: &[u32], right: &[u32], joined: &[u32]) -> Result<Self> {
        // Tokens of the right side may stay as well before the first that differs.
        let kept = common_start(left, right, joined);
        let kept_right = kept.saturating_sub(left.len());
        let (left, right) = (&left[kept - kept_right..], &right[kept_right..]);
        let joined = &joined[kept..];
        let same = right.iter().rev().zip(joined.iter().rev()).take_while(|(a, b)| a == b).count();
        let right = &right[..right.len() - same];
        let text = |ids| {
            tokenizer.decode_bytes(ids).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Self {
            left_ids: left.to_vec(),
            right_ids: right.to_vec(),
            merged_ids: joined[..joined.len() - same].to_vec(),
            left_text: text(left)?,
            right_text: text(right)?,
        })
    }
}

impl Seam {
    pub(crate) fn clean(kind: SeamKind, ids: Vec<u32>) -> Self {
        Self { kind, exact: true, drop: 0, ids, canonical_ids: None, merge: None }
    }

    /// The seam between text and text: `before` became `after` when `right` arrived.
    pub(crate) fn between_texts<'a>(
        tokenizer: &Tokenizer,
        before: &[u32],
        after: &[u32],
        barrier: bool,
        right: impl FnOnce() -> Joined<'a>,
    ) -> Result<Self> {
        let kept = common_prefix(before, after);
        let drop = before.len() - kept;
        let ids = after[kept..].to_vec();
        if drop == 0 {
            let kind = if barrier { SeamKind::Barrier } else { tokenizer.kind_without_barrier() };
            return Ok(Self::clean(kind, ids));
        }
        // Text that cannot be written without what stands before it has no tokens of its own.
        let merge = match tokenizer.encode_joined(&right(), Edge::Continue) {
            Ok(right) => Some(Merge::new(tokenizer, before, &right.ids, after)?),
            Err(_) => None,
        };
        let kind = SeamKind::Merged;
        Ok(Self { kind, exact: false, drop, ids, canonical_ids: None, merge })
    }

    /// The seam after frozen tokens, of which `written` now follows: `left` is the text of their
    /// end, encoded from `edge`, and `right` is the text of what follows.
    pub(crate) fn after_frozen(
        tokenizer: &Tokenizer,
        left: &Joined<'_>,
        edge: Edge,
        right: &Joined<'_>,
        written: Vec<u32>,
    ) -> Self {
        let window = tokenizer.first_anchor(&right.text).map(|(_, end)| right.before(end));
        let near = window.as_ref().unwrap_or(right);
        let both = [left, near].into_iter().fold(Joined::default(), Joined::followed_by);
        let encode =
            |joined: &Joined<'_>, edge| tokenizer.encode_joined(joined, edge).map(|e| e.ids);
        let (Ok(alone), Ok(after), Ok(joined)) =
            (encode(left, edge), encode(near, Edge::Continue), encode(&both, edge))
        else {
            // Sampled bytes that no text has, as where they spell a control token.
            return Self::broken(written);
        };
        if joins(&alone, &after, &joined) {
            return Self::clean(tokenizer.kind_without_barrier(), written);
        }
        let (after, joined) = if window.is_some() {
            let both = [left, right].into_iter().fold(Joined::default(), Joined::followed_by);
            let (Ok(after), Ok(joined)) = (encode(right, Edge::Continue), encode(&both, edge))
            else {
                return Self::broken(written);
            };
            (after, joined)
        } else {
            (after, joined)
        };
        let merge = Merge::new(tokenizer, &alone, &after, &joined).ok();
        let canonical = joined[common_start(&alone, &after, &joined)..].to_vec();
        Self { canonical_ids: Some(canonical), merge, ..Self::broken(written) }
    }

    /// A seam where no canonical tokens exist, as inside a character.
    pub(crate) fn broken(written: Vec<u32>) -> Self {
        Self { exact: false, ..Self::clean(SeamKind::Merged, written) }
    }
}

impl Tokenizer {
    /// The verdict on the seam between two texts, in time that depends on `b` and on the run of
    /// characters at the end of `a`.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn seam(&self, a: &str, b: &str, mode: AddedMode) -> Result<Seam> {
        let (a, b, edge) = self.sides(a, b, mode)?;
        let left = self.encode_joined(&Joined::new([a]), edge)?;
        let joined = self.encode_joined(&Joined::new([a, b]), edge)?;
        let ends_hard = left.hard.last().is_some_and(|cut| cut.bytes.end == a.text.len());
        let meets_hard = ends_hard || joined.hard_at(a.text.len());
        let barrier = meets_hard || a.text.is_empty() || b.text.is_empty();
        Seam::between_texts(self, &left.ids, &joined.ids, barrier, || Joined::new([b]))
    }

    /// The literal equation `tok(a+b) == tok(a)+tok(b)`, in time that depends on the runs of
    /// characters on both sides.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], for the text around the seam.
    pub fn is_additive(&self, a: &str, b: &str, mode: AddedMode) -> Result<bool> {
        let (a, b, edge) = self.sides(a, b, mode)?;
        // What follows the first anchor of `b` is the same on both sides of the equation.
        let near = self.first_anchor(b.text).map_or(b.text.len(), |(_, end)| end);
        let b = Part { text: &b.text[..near], ..b };
        let encode = |parts: &[Part<'_>], edge| self.encode_parts(parts, edge);
        let (left, right) = (encode(&[a], edge)?, encode(&[b], Edge::Start)?);
        Ok(joins(&left, &right, &encode(&[a, b], edge)?))
    }

    /// Both texts as parts, the left one from its last anchor on.
    fn sides<'a>(
        &self,
        a: &'a str,
        b: &'a str,
        mode: AddedMode,
    ) -> Result<(Part<'a>, Part<'a>, Edge)> {
        if mode == AddedMode::Raise {
            self.part(&[a, b].concat(), mode)?;
        }
        let (a, edge) = match self.last_anchor(a) {
            Some(anchor) => (&a[anchor..], Edge::Interior),
            None => (a, Edge::Start),
        };
        // What was to be refused has been.
        let part = if mode == AddedMode::Parse { Part::scaffold } else { Part::content };
        Ok((part(a), part(b), edge))
    }

    /// What decides where no hard token does.
    pub(crate) fn kind_without_barrier(&self) -> SeamKind {
        if self.has_anchors() { SeamKind::Window } else { SeamKind::Opaque }
    }
}

/// Whether `joined` is `left` and `right`, end to end.
fn joins(left: &[u32], right: &[u32], joined: &[u32]) -> bool {
    joined.len() == left.len() + right.len() && joined.starts_with(left) && joined.ends_with(right)
}

/// How many tokens of `joined` are those of `left` and `right`, end to end.
fn common_start(left: &[u32], right: &[u32], joined: &[u32]) -> usize {
    let both = left.iter().chain(right);
    both.zip(joined).take_while(|(x, y)| x == y).count()
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
