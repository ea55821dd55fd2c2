//! The verdict on one seam: where one piece meets the next, did any token change?

/// How a seam was decided, and what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// from the first differing token up to the next hard one.
    pub canonical_ids: Option<Vec<u32>>,
}

impl Seam {
    pub(crate) fn clean(kind: SeamKind, ids: Vec<u32>) -> Self {
        Self { kind, exact: true, drop: 0, ids, canonical_ids: None }
    }

    /// The seam between text and text: `before` became `after` when more text arrived.
    pub(crate) fn between_texts(before: &[u32], after: &[u32], barrier: bool) -> Self {
        let kept = common_prefix(before, after);
        let drop = before.len() - kept;
        let kind = if drop > 0 {
            SeamKind::Merged
        } else if barrier {
            SeamKind::Barrier
        } else {
            SeamKind::Opaque
        };
        Self { kind, exact: drop == 0, drop, ids: after[kept..].to_vec(), canonical_ids: None }
    }

    /// The seam after frozen tokens, of which `written` now follows. `left`, `right` and `joined`
    /// are the canonical tokens of the text on the left, on the right, and of both.
    pub(crate) fn after_frozen(
        left: &[u32],
        right: &[u32],
        joined: &[u32],
        written: Vec<u32>,
    ) -> Self {
        if joins(left, right, joined) {
            return Self::clean(SeamKind::Opaque, written);
        }
        let canonical = joined[common_prefix(left, joined)..].to_vec();
        Self { canonical_ids: Some(canonical), ..Self::broken(written) }
    }

    /// A seam inside a character: no canonical tokens exist.
    pub(crate) fn broken(written: Vec<u32>) -> Self {
        Self { exact: false, ..Self::clean(SeamKind::Merged, written) }
    }
}

/// Whether `joined` is `left` and `right`, end to end.
pub(crate) fn joins(left: &[u32], right: &[u32], joined: &[u32]) -> bool {
    joined.len() == left.len() + right.len() && joined.starts_with(left) && joined.ends_with(right)
}

pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
