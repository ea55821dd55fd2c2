//! One call for many texts: it uses all cores, releases the GIL at most once, and answers in order.
//!
//! Invariant: the answers are those of one call after the other. Of several texts that fail, the
//! first is named, whichever thread was done first.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use abut_core::{Error, Tokenizer};
use pyo3::prelude::*;

use crate::detach::encoding;
use crate::forks::while_nobody_forks;

/// The time between two checks for Ctrl-C, which happen between two texts.
const SIGNALS: Duration = Duration::from_millis(50);
/// Bytes of text that are worth a thread.
const THREAD_BYTES: usize = 32 * 1024;

/// The number of threads that have something to do.
fn threads(texts: usize, bytes: usize) -> usize {
    let busy = texts.min(bytes / THREAD_BYTES);
    if busy < 2 {
        // Counting the cores reads system files: 25 us, the time of a kilobyte of text.
        return 1;
    }
    thread::available_parallelism().map_or(1, usize::from).min(busy)
}

/// The answers to `0..count`, or the first that is an error, with its index.
///
/// They are of `bytes` bytes of text in all, which `tokenizer` encodes.
pub fn answers<T: Send>(
    py: Python<'_>,
    tokenizer: &Tokenizer,
    bytes: usize,
    count: usize,
    answer: impl Fn(usize) -> Result<T, Error> + Sync,
) -> PyResult<Result<Vec<T>, (usize, Error)>> {
    let threads = threads(count, bytes);
    let next = AtomicUsize::new(0);
    // Texts from this one on need no answer: those behind the first error, and after Ctrl-C all.
    let end = AtomicUsize::new(count);
    let work = &|after_each: &mut dyn FnMut()| {
        let mut answered = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= end.load(Ordering::Relaxed) {
                return answered;
            }
            let result = answer(index);
            if result.is_err() {
                end.fetch_min(index, Ordering::Relaxed);
            }
            answered.push((index, result));
            after_each();
        }
    };
    let mut interrupt = None;
    let mut answered = encoding(py, tokenizer, bytes, || {
        let mut looked = Instant::now();
        let mut look_for_signals = || {
            if looked.elapsed() >= SIGNALS {
                interrupt = Python::attach(|py| py.check_signals().err());
                looked = Instant::now();
            }
            if interrupt.is_some() {
                end.store(0, Ordering::Relaxed);
            }
        };
        if threads == 1 {
            return work(&mut look_for_signals);
        }
        // A thread that is done waits behind it until all are, so that they end together.
        let gate = &Mutex::new(());
        thread::scope(|scope| {
            let closed = gate.lock();
            let (sender, from_others) = mpsc::channel();
            let start = |seat| {
                let sender = sender.clone();
                let work = move || {
                    abut_core::look_first_at(seat);
                    // If the first thread panicked, the receiver is gone.
                    sender.send(work(&mut || {})).ok();
                    drop(sender);
                    drop(gate.lock());
                };
                while_nobody_forks(|| scope.spawn(work))
            };
            let others: Vec<_> = (1..threads).map(start).collect();
            drop(sender);
            let mut answered = work(&mut look_for_signals);
            answered.extend(from_others.iter().flatten());
            let ended = while_nobody_forks(|| {
                drop(closed);
                others.into_iter().try_for_each(ScopedJoinHandle::join)
            });
            ended.unwrap_or_else(|panic| resume_unwind(panic));
            answered
        })
    });
    if let Some(interrupt) = interrupt {
        return Err(interrupt);
    }
    answered.sort_unstable_by_key(|&(index, _)| index);
    Ok(answered.into_iter().map(|(index, result)| result.map_err(|e| (index, e))).collect())
}
