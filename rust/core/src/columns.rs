//! Trajectories as arrays: one row of ragged columns each, and padded batches of them.

use crate::error::{Error, Result};

/// One row for a trainer. `completion_ids`, `logprobs` and `env_mask` are aligned.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Columns {
    /// All ids before the first sampled one.
    pub prompt_ids: Vec<i64>,
    /// All ids from the first to the last sampled one.
    pub completion_ids: Vec<i64>,
    /// Nats; 0.0 where `env_mask` is 0.
    pub logprobs: Vec<f32>,
    /// 1 where the policy sampled the token.
    pub env_mask: Vec<u8>,
}

/// A borrowed row: the arrays may live in another language.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// As [`Columns::prompt_ids`].
    pub prompt_ids: &'a [i64],
    /// As [`Columns::completion_ids`].
    pub completion_ids: &'a [i64],
    /// As [`Columns::logprobs`].
    pub logprobs: &'a [f32],
    /// As [`Columns::env_mask`].
    pub env_mask: &'a [u8],
}

impl Row<'_> {
    /// Checks that the arrays are aligned and agree; `index` names the row in the error.
    ///
    /// # Errors
    /// [`Error::ColumnLength`], [`Error::ColumnValue`].
    pub fn check(&self, index: usize) -> Result<()> {
        self.check_lengths(index)?;
        self.check_values(index)
    }

    fn check_lengths(&self, index: usize) -> Result<()> {
        let expected = self.completion_ids.len();
        for (name, len) in [("logprobs", self.logprobs.len()), ("env_mask", self.env_mask.len())] {
            if len != expected {
                return Err(Error::ColumnLength { row: index, name, len, expected });
            }
        }
        Ok(())
    }

    /// The arrays are aligned.
    fn check_values(&self, index: usize) -> Result<()> {
        if self.agrees() {
            return Ok(());
        }
        let wrong = (0..self.completion_ids.len()).find_map(|at| {
            let (mask, logprob) = (self.env_mask[at], self.logprobs[at]);
            let problem = match mask {
                0 if logprob.abs().to_bits() == 0 => return None,
                1 if logprob.is_finite() => return None,
                0 | 1 => format!("has env_mask {mask} and logprob {logprob}"),
                _ => format!("has env_mask {mask}"),
            };
            Some(Error::ColumnValue { row: index, index: at, problem })
        });
        wrong.map_or(Ok(()), Err)
    }

    /// True if all masks and logprobs are possible, found without a branch for each token.
    fn agrees(&self) -> bool {
        const LARGEST: u32 = f32::MAX.to_bits();
        // Without its sign a finite number is at most the largest one, by its bits, and 0.0 is 0.
        // The difference has the upper bit where it is more.
        let beyond = |mask: u8, logprob: f32| {
            let most = 0_u32.wrapping_sub(mask.into()) & LARGEST;
            most.wrapping_sub(logprob.abs().to_bits())
        };
        let masks = self.env_mask.iter().fold(0, |any, mask| any | mask);
        let pairs = self.env_mask.iter().zip(self.logprobs);
        let any_beyond = pairs.fold(0, |any, (&mask, &logprob)| any | beyond(mask, logprob));
        masks <= 1 && any_beyond >> 31 == 0
    }
}

/// The dimensions of rows that are padded to rectangles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    /// The number of rows.
    pub rows: usize,
    /// The length of the longest prompt.
    pub prompt_len: usize,
    /// The length of the longest completion.
    pub completion_len: usize,
}

impl Dimensions {
    /// The dimensions of these rows.
    #[must_use]
    pub fn of(rows: &[Row<'_>]) -> Self {
        let longest = |len: fn(&Row<'_>) -> usize| rows.iter().map(len).max().unwrap_or(0);
        Self {
            rows: rows.len(),
            prompt_len: longest(|row| row.prompt_ids.len()),
            completion_len: longest(|row| row.completion_ids.len()),
        }
    }
}

/// Room for rows padded to rectangles, row-major: prompts on the left, completions on the right.
/// Borrowed, because the caller can place large arrays in memory that is cheap to write the first time.
#[derive(Debug)]
pub struct Batch<'a> {
    /// `(rows, prompt_len)`.
    pub prompt_ids: &'a mut [i64],
    /// `(rows, prompt_len)`: 1 where it is no padding.
    pub prompt_mask: &'a mut [u8],
    /// `(rows, completion_len)`.
    pub completion_ids: &'a mut [i64],
    /// `(rows, completion_len)`: 1 where it is no padding.
    pub completion_mask: &'a mut [u8],
    /// `(rows, completion_len)`.
    pub logprobs: &'a mut [f32],
    /// `(rows, completion_len)`: 1 where the policy sampled the token.
    pub env_mask: &'a mut [u8],
}

/// Pads rows to rectangles; each value is written once.
///
/// # Errors
/// As [`Row::check`], for each row; the batch is of no use then.
///
/// # Panics
/// Where the room is not that of [`Dimensions::of`] these rows.
pub fn collate(rows: &[Row<'_>], pad_id: i64, batch: &mut Batch<'_>) -> Result<()> {
    let Dimensions { prompt_len, completion_len, .. } = Dimensions::of(rows);
    for (index, row) in rows.iter().enumerate() {
        row.check_lengths(index)?;
        let prompt = index * prompt_len..(index + 1) * prompt_len;
        let padding = prompt_len - row.prompt_ids.len();
        let (pad, ids) = batch.prompt_ids[prompt.clone()].split_at_mut(padding);
        pad.fill(pad_id);
        ids.copy_from_slice(row.prompt_ids);
        let (pad, mask) = batch.prompt_mask[prompt].split_at_mut(padding);
        pad.fill(0);
        mask.fill(1);

        let completion = index * completion_len..(index + 1) * completion_len;
        let len = row.completion_ids.len();
        let (ids, pad) = batch.completion_ids[completion.clone()].split_at_mut(len);
        ids.copy_from_slice(row.completion_ids);
        pad.fill(pad_id);
        let (mask, pad) = batch.completion_mask[completion.clone()].split_at_mut(len);
        mask.fill(1);
        pad.fill(0);
        let (logprobs, pad) = batch.logprobs[completion.clone()].split_at_mut(len);
        logprobs.copy_from_slice(row.logprobs);
        pad.fill(0.0);
        let (mask, pad) = batch.env_mask[completion].split_at_mut(len);
        mask.copy_from_slice(row.env_mask);
        pad.fill(0);
        // Checked after the copy, not before: the values are in the cache now, and a copy fetches
        // memory faster than any loop that checks it.
        row.check_values(index)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_and_a_logprob_agree_where_the_message_finds_nothing_wrong() {
        let tiny = f32::from_bits(1);
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let logprobs =
            [0.0, -0.0, tiny, -tiny, -1.0, 1.0, f32::MIN, f32::MAX, inf, -inf, nan, -nan];
        let mut agreed = 0;
        for mask in [0, 1, 2, 255] {
            for logprob in logprobs {
                let (ids, logprobs, env_mask) = ([7], [logprob], [mask]);
                let row = Row {
                    prompt_ids: &[],
                    completion_ids: &ids,
                    logprobs: &logprobs,
                    env_mask: &env_mask,
                };
                let expected = match mask {
                    0 => logprob == 0.0,
                    1 => logprob.is_finite(),
                    _ => false,
                };
                assert_eq!(row.agrees(), expected, "{mask} {logprob}");
                assert_eq!(row.check(0).is_ok(), expected, "{mask} {logprob}");
                agreed += usize::from(expected);
            }
        }
        assert_eq!(agreed, 2 + 8);
    }
}
