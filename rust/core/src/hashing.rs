//! The multiplication that every hash here begins with.

/// Carries each bit of a number to the bits above it, so that the upper half is a hash of the number.
///
/// The factor is 2^64 divided by the golden ratio (Fibonacci hashing). Factors that are near a
/// fraction with a small denominator leave numbers in a row, such as ids, close together.
#[inline(always)]
#[allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]
pub(crate) const fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
