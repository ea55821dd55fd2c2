//! The verdict on the way in which one call follows another.

use serde::{Deserialize, Serialize};

use super::cause::Cause;

/// The verdict on one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransitionKind {
    /// It extends its parent exactly, or is the first call with a prompt that has no parent.
    Clean,
    /// It goes on with its parent; the tail of the parent's sample is context now.
    Realigned,
    /// It does not go on with its parent's chain: it begins one, or was dropped.
    Forked,
    /// It extends more than one call exactly, or such a call: it is in no chain.
    Quarantined,
}

impl TransitionKind {
    /// The name that users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Realigned => "realigned",
            Self::Forked => "forked",
            Self::Quarantined => "quarantined",
        }
    }
}

/// The way in which one call follows another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Index of the call, as recorded.
    pub call: usize,
    /// The call that it extends, leaves or repeats.
    pub parent: Option<usize>,
    /// Index of its chain.
    pub chain: Option<usize>,
    /// The verdict.
    pub kind: TransitionKind,
    /// The first token that differs from the one that stood there.
    pub token: Option<usize>,
    /// A guess at the cause, where tokens differ from those of one call.
    pub cause: Option<Cause>,
    /// With a tokenizer: the text around `token` in the call that differs, and in the prompt.
    pub texts: Option<(String, String)>,
}
