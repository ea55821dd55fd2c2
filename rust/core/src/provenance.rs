//! The author of a token, which decides whether it is trained and how it is shown.

/// The author of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
// Python gets these numbers, and names each by its index in `abut.trajectory.PROVENANCE`.
#[repr(u8)]
pub enum Provenance {
    /// Text of the prompt: system, user, earlier turns.
    Prompt = 0,
    /// Text that the environment answered.
    Env = 1,
    /// Written by the chat template around content.
    Scaffold = 2,
    /// Drawn by the policy.
    Sampled = 3,
    /// Written by abut to end a turn that the policy did not end.
    Close = 4,
}
