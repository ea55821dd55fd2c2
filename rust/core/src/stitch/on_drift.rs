//! The choice of how drift is handled.

/// The handling of a prompt that differs from the tokens that stood there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDrift {
    /// Refuse the recording.
    Error,
    /// The chain ends before the call, which is dropped with all calls that extend it.
    Truncate,
    /// The call begins a chain.
    Split,
    /// Where the difference lies in a sample, its tail becomes context; else as `Split`.
    Realign,
}
