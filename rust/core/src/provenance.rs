//! Who wrote a token: what decides whether it is trained, and as what it is shown.

/// Who wrote a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
// The numbers go out as they are: Python names them by their place in `abut.PROVENANCE`.
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
    /// Written by us to close a turn that the policy did not close.
    Close = 4,
}
