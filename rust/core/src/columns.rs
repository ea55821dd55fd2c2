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
    /// Whether the arrays are aligned and agree; `index` names the row in the error.
    ///
    /// # Errors
    /// [`Error::ColumnLength`], [`Error::ColumnValue`].
    pub fn check(&self, index: usize) -> Result<()> {
        let expected = self.completion_ids.len();
        for (name, len) in [("logprobs", self.logprobs.len()), ("env_mask", self.env_mask.len())] {
            if len != expected {
                return Err(Error::ColumnLength { row: index, name, len, expected });
            }
        }
        let wrong = (0..expected).find_map(|at| {
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
}

/// Rows padded to rectangles, row-major: prompts on the left, completions on the right.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// How many rows.
    pub rows: usize,
    /// The longest prompt.
    pub prompt_len: usize,
    /// The longest completion.
    pub completion_len: usize,
    /// `(rows, prompt_len)`.
    pub prompt_ids: Vec<i64>,
    /// `(rows, prompt_len)`: 1 where it is no padding.
    pub prompt_mask: Vec<u8>,
    /// `(rows, completion_len)`.
    pub completion_ids: Vec<i64>,
    /// `(rows, completion_len)`: 1 where it is no padding.
    pub completion_mask: Vec<u8>,
    /// `(rows, completion_len)`.
    pub logprobs: Vec<f32>,
    /// `(rows, completion_len)`: 1 where the policy sampled the token.
    pub env_mask: Vec<u8>,
}

/// Pads rows to rectangles.
///
/// # Errors
/// As [`Row::check`], for each row.
pub fn collate(columns: &[Row<'_>], pad_id: i64) -> Result<Batch> {
    for (index, row) in columns.iter().enumerate() {
        row.check(index)?;
    }
    let prompt_len = columns.iter().map(|row| row.prompt_ids.len()).max().unwrap_or(0);
    let completion_len = columns.iter().map(|row| row.completion_ids.len()).max().unwrap_or(0);
    let rows = columns.len();
    let mut batch = Batch {
        rows,
        prompt_len,
        completion_len,
        prompt_ids: vec![pad_id; rows * prompt_len],
        prompt_mask: vec![0; rows * prompt_len],
        completion_ids: vec![pad_id; rows * completion_len],
        completion_mask: vec![0; rows * completion_len],
        logprobs: vec![0.0; rows * completion_len],
        env_mask: vec![0; rows * completion_len],
    };
    for (row, columns) in columns.iter().enumerate() {
        let end = (row + 1) * prompt_len;
        let prompt = end - columns.prompt_ids.len()..end;
        batch.prompt_ids[prompt.clone()].copy_from_slice(columns.prompt_ids);
        batch.prompt_mask[prompt].fill(1);
        let start = row * completion_len;
        let completion = start..start + columns.completion_ids.len();
        batch.completion_ids[completion.clone()].copy_from_slice(columns.completion_ids);
        batch.completion_mask[completion.clone()].fill(1);
        batch.logprobs[completion.clone()].copy_from_slice(columns.logprobs);
        batch.env_mask[completion].copy_from_slice(columns.env_mask);
    }
    Ok(batch)
}
