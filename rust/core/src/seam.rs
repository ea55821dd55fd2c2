//! The verdict on one seam: where one piece meets the next, did any token change?
//!
//! Invariant: the verdict is that of the whole texts, although only a window around the seam is encoded.
//! The window reaches from the last anchor on the left to the first anchor on the right, and no token
//! outside it depends on the seam.
//!
//! The examples here use a tokenizer of four letters of which `a` and `b` merge. A space is a word of its
//! own, and `<end>` is a control token.

use serde::{Deserialize, Serialize};

use crate::encode::Edge;
use crate::error::Result;
use crate::parts::{Joined, Part};
use crate::tokenizer::{AddedMode, Tokenizer};

/// The way in which a seam was decided, and the result.
///
/// ```
/// use abut_core::{AddedMode, Overrides, SeamKind, Tokenizer};
///
/// # let space = r#"{"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false}"#;
/// # let end = r#"{"id": 4, "content": "<end>", "special": true}"#;
/// # let model = r#"{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3}, "merges": [["a", "b"]]}"#;
/// # let json = format!(r#"{{"added_tokens": [{end}], "pre_tokenizer": {space}, "model": {model}}}"#);
/// # let json = json.as_str();
/// let tokenizer = Tokenizer::from_json(json, &Overrides::default())?;
/// let kind = |a, b| tokenizer.seam(a, b, AddedMode::Parse).map(|seam| seam.kind);
///
/// assert_eq!(kind("a<end>", "b")?, SeamKind::Barrier);
/// assert_eq!(kind("a ", "b")?, SeamKind::Window);
/// assert_eq!(kind("a", "b")?, SeamKind::Merged);
///
/// // A normalizer that replaces by a regular expression has no anchors.
/// # let replace = r#"{"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}"#;
/// # let json = format!(r#"{{"normalizer": {replace}, "pre_tokenizer": {space}, "model": {model}}}"#);
/// let tokenizer = Tokenizer::from_json(&json, &Overrides::default())?;
/// assert_eq!(tokenizer.seam("a ", "b", AddedMode::Parse)?.kind, SeamKind::Opaque);
/// # Ok::<(), abut_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeamKind {
    /// A hard token touches the seam: nothing can change.
    Barrier,
    /// Decided by a bounded window: exact.
    Window,
    /// The canonical tokens differ across the seam.
    Merged,
    /// This tokenizer has no anchors, so the whole segment was encoded again. The verdict is exact, but
    /// its time grows with the segment.
    Opaque,
}

impl SeamKind {
    /// The name that users see.
    ///
    /// ```
    /// use abut_core::SeamKind;
    ///
    /// assert_eq!(SeamKind::Barrier.as_str(), "barrier");
    /// assert_eq!(SeamKind::Merged.as_str(), "merged");
    /// ```
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

/// The verdict on one seam, with the tokens that were written there.
///
/// The left tokens without the last `drop`, followed by `ids`, are the tokens of both texts together:
///
/// ```
/// use abut_core::{AddedMode, Overrides, Tokenizer};
///
/// # let space = r#"{"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false}"#;
/// # let model = r#"{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3}, "merges": [["a", "b"]]}"#;
/// # let json = format!(r#"{{"pre_tokenizer": {space}, "model": {model}}}"#);
/// # let json = json.as_str();
/// let tokenizer = Tokenizer::from_json(json, &Overrides::default())?;
/// let encode = |text| tokenizer.encode(text, AddedMode::Text);
///
/// let seam = tokenizer.seam("b a", "b b", AddedMode::Text)?;
/// assert!(!seam.exact);
/// assert_eq!(seam.drop, 1);
///
/// let mut ids = encode("b a")?;
/// ids.truncate(ids.len() - seam.drop);
/// ids.extend(&seam.ids);
/// assert_eq!(ids, encode("b ab b")?);
/// # Ok::<(), abut_core::Error>(())
/// ```
///
/// Behind frozen tokens nothing is dropped. `canonical_ids` then has the tokens that a tokenizer would
/// have written for both texts:
///
/// ```
/// use std::sync::Arc;
///
/// use abut_core::{AddedMode, Overrides, Provenance, Tokenizer, Trajectory};
///
/// # let model = r#"{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}"#;
/// # let json = format!(r#"{{"model": {model}}}"#);
/// # let json = json.as_str();
/// let tokenizer = Arc::new(Tokenizer::from_json(json, &Overrides::default())?);
/// let mut trajectory = Trajectory::new(tokenizer);
/// trajectory.append_text("a", AddedMode::Text, Provenance::Prompt)?;
/// trajectory.request();
///
/// let (b, ab) = (1, 2);
/// let seam = trajectory.append_sampled(&[b], &[-0.5])?;
/// assert_eq!((seam.drop, seam.ids), (0, vec![b]));
/// assert_eq!(seam.canonical_ids, Some(vec![ab]));
/// # Ok::<(), abut_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seam {
    /// The way in which it was decided.
    pub kind: SeamKind,
    /// True if no token on the left changed, and both sides have the tokens of the whole text.
    pub exact: bool,
    /// The number of tokens before the seam that were replaced.
    pub drop: usize,
    /// The tokens that now follow the left tokens without the last `drop`.
    pub ids: Vec<u32>,
    /// The canonical tokens, if the left side was frozen and they differ: from the first one that
    /// neither side has alone up to the next hard token.
    pub canonical_ids: Option<Vec<u32>>,
    /// The tokens that differ on both sides of a merged seam; `None` where no canonical tokens exist.
    pub merge: Option<Merge>,
}

/// The tokens around a merged seam, from the first that differs to the last. Tokens that stay are on
/// neither side.
///
/// ```
/// use abut_core::{AddedMode, Merge, Overrides, Tokenizer};
///
/// # let space = r#"{"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false}"#;
/// # let model = r#"{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3}, "merges": [["a", "b"]]}"#;
/// # let json = format!(r#"{{"pre_tokenizer": {space}, "model": {model}}}"#);
/// # let json = json.as_str();
/// let tokenizer = Tokenizer::from_json(json, &Overrides::default())?;
///
/// let merge = tokenizer.seam("b a", "b b", AddedMode::Text)?.merge;
/// let (a, b, ab) = (0, 1, 2);
/// assert_eq!(
///     merge,
///     Some(Merge {
///         left_ids: vec![a],
///         right_ids: vec![b],
///         merged_ids: vec![ab],
///         left_text: "a".to_owned(),
///         right_text: "b".to_owned(),
///     })
/// );
/// # Ok::<(), abut_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// The last tokens of the left side alone; empty where only the right changes.
    pub left_ids: Vec<u32>,
    /// Tokens of the right side alone: its first ones, where the left changes too.
    pub right_ids: Vec<u32>,
    /// The tokens of both together.
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

    /// The seam between two texts: the tokens `before` became `after` when `right` joined.
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
        // Some text has no tokens of its own, because the model cannot write it without the text before.
        let merge = match tokenizer.encode_joined(&right(), Edge::Continue) {
            Ok(right) => Some(Merge::new(tokenizer, before, &right.ids, after)?),
            Err(_) => None,
        };
        let kind = SeamKind::Merged;
        Ok(Self { kind, exact: false, drop, ids, canonical_ids: None, merge })
    }

    /// The seam after frozen tokens: `left` is the text of the last of them, encoded from `edge`, and
    /// `right` is the text of the tokens `written` that follow.
    pub(crate) fn after_frozen(
        tokenizer: &Tokenizer,
        left: &Joined<'_>,
        edge: Edge,
        right: &Joined<'_>,
        written: Vec<u32>,
    ) -> Self {
        // The window ends one character behind the anchor: without that character the text would end
        // where the anchor is, and an end of text can change the last tokens (`\s+(?!\S)`).
        let window = tokenizer.first_anchor(&right.text).map(|(_, end)| right.before(end));
        let near = window.as_ref().unwrap_or(right);
        let both = [left, near].into_iter().fold(Joined::default(), Joined::followed_by);
        let encode =
            |joined: &Joined<'_>, edge| tokenizer.encode_joined(joined, edge).map(|e| e.ids);
        let (Ok(alone), Ok(after), Ok(joined)) =
            (encode(left, edge), encode(near, Edge::Continue), encode(&both, edge))
        else {
            // The model cannot write the text, for example sampled bytes that spell a control token.
            return Self::broken(written);
        };
        if joins(&alone, &after, &joined) {
            return Self::clean(tokenizer.kind_without_barrier(), written);
        }
        // The window was enough to see that the tokens differ. `canonical_ids` needs all of the text.
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
    ///
    /// # Examples
    /// ```
    /// use abut_core::{AddedMode, Overrides, Tokenizer};
    ///
    /// # let model = r#"{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}"#;
    /// # let json = format!(r#"{{"model": {model}}}"#);
    /// # let json = json.as_str();
    /// let tokenizer = Tokenizer::from_json(json, &Overrides::default())?;
    ///
    /// assert!(tokenizer.seam("b", "a", AddedMode::Text)?.exact);
    /// assert!(!tokenizer.seam("a", "b", AddedMode::Text)?.exact);
    /// # Ok::<(), abut_core::Error>(())
    /// ```
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
    ///
    /// # Examples
    /// The equation can fail although the seam is exact: here `tok(b)` begins with a prefix, which text
    /// that continues does not get.
    ///
    /// ```
    /// use abut_core::{AddedMode, Overrides, Tokenizer};
    ///
    /// # let prefix = r#"{"type": "Prepend", "prepend": "_"}"#;
    /// # let model = r#"{"type": "BPE", "vocab": {"a": 0, "b": 1, "_": 2}, "merges": []}"#;
    /// # let json = format!(r#"{{"normalizer": {prefix}, "model": {model}}}"#);
    /// # let json = json.as_str();
    /// let tokenizer = Tokenizer::from_json(json, &Overrides::default())?;
    ///
    /// assert_eq!(tokenizer.encode("ab", AddedMode::Text)?, [2, 0, 1]);
    /// assert_eq!(tokenizer.encode("b", AddedMode::Text)?, [2, 1]);
    /// assert!(tokenizer.seam("a", "b", AddedMode::Text)?.exact);
    /// assert!(!tokenizer.is_additive("a", "b", AddedMode::Text)?);
    /// # Ok::<(), abut_core::Error>(())
    /// ```
    pub fn is_additive(&self, a: &str, b: &str, mode: AddedMode) -> Result<bool> {
        let (a, b, edge) = self.sides(a, b, mode)?;
        // The tokens behind the first anchor of `b` are the same on both sides of the equation.
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
        // `Raise` has refused control tokens above, in the whole texts; the rest is content.
        let part = if mode == AddedMode::Parse { Part::scaffold } else { Part::content };
        Ok((part(a), part(b), edge))
    }

    /// The kind of an exact seam that no hard token touches.
    pub(crate) fn kind_without_barrier(&self) -> SeamKind {
        if self.has_anchors() { SeamKind::Window } else { SeamKind::Opaque }
    }
}

/// True if `joined` is `left` followed by `right`.
fn joins(left: &[u32], right: &[u32], joined: &[u32]) -> bool {
    joined.len() == left.len() + right.len() && joined.starts_with(left) && joined.ends_with(right)
}

/// The number of first tokens that `joined` shares with `left` followed by `right`.
fn common_start(left: &[u32], right: &[u32], joined: &[u32]) -> usize {
    let both = left.iter().chain(right);
    both.zip(joined).take_while(|(x, y)| x == y).count()
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
