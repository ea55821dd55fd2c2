//! The working room of threads that encode at the same time, kept with the tokenizer.
//!
//! Invariant: no thread waits. In a forked process, a lock that another thread held is held for ever.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// The number of items that a pool keeps. When all are lent, a further thread gets one that is thrown
/// away afterwards.
const SEATS: usize = 64;

thread_local! {
    static FIRST_SEAT: Cell<usize> = const { Cell::new(0) };
}

/// Makes this thread try the pool's item at `seat` first. Threads that encode side by side each take
/// another one: the item that another thread used a moment ago is not in the caches of this core.
pub fn look_first_at(seat: usize) {
    FIRST_SEAT.set(seat % SEATS);
}

/// An item for each thread that works at the same time, made when it is first asked for. The items are
/// dropped with the pool, whereas thread-locals would stay with every thread that once worked.
///
/// A thread holds the lock of its seat while it works. An earlier version had one lock around all idle
/// items. With short texts that lock was often held, and a thread that found it held made a new item:
/// eight thousand texts of 100 bytes on two cores took twice the CPU time and left 100 MB of items.
#[derive(Debug)]
pub(super) struct Pool<T>(Box<[Mutex<Option<T>>]>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self((0..SEATS).map(|_| Mutex::default()).collect())
    }
}

impl<T> Pool<T> {
    /// Lends an item to `work`.
    pub fn with<R>(&self, make: impl FnOnce() -> T, work: impl FnOnce(&mut T) -> R) -> R {
        let (mut seat, mut none) = (self.free_seat(), None);
        work(seat.as_deref_mut().unwrap_or(&mut none).get_or_insert_with(make))
    }

    fn free_seat(&self) -> Option<MutexGuard<'_, Option<T>>> {
        let first = FIRST_SEAT.get();
        let seats = self.0[first..].iter().chain(&self.0[..first]);
        seats.map(Mutex::try_lock).find_map(|lock| match lock {
            Ok(seat) => Some(seat),
            // A panic leaves a word half merged and no lookups; the next text begins with new ones.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// The number that a thread finds in the pool's item; it leaves the next one.
    fn found(pool: &Pool<u32>) -> u32 {
        pool.with(|| 0, |count| std::mem::replace(count, *count + 1))
    }

    fn made(pool: &Pool<u32>) -> Vec<usize> {
        let is_made = |seat: &Mutex<Option<u32>>| seat.lock().expect("idle").is_some();
        (0..SEATS).filter(|&seat| is_made(&pool.0[seat])).collect()
    }

    #[test]
    fn a_pool_never_waits_for_a_thread_that_holds_its_locks() {
        let pool = Pool::default();
        let held: Vec<_> = pool.0.iter().map(|seat| seat.lock().expect("nobody has it")).collect();
        assert_eq!([found(&pool), found(&pool)], [0, 0]);
        assert!(held.iter().all(|seat| seat.is_none()));
    }

    #[test]
    fn a_thread_finds_what_it_used_before_and_another_one_has_its_own() {
        let pool = Pool::default();
        assert_eq!([found(&pool), found(&pool)], [0, 1]);
        thread::scope(|scope| {
            scope.spawn(|| {
                look_first_at(SEATS + 3);
                assert_eq!(found(&pool), 0);
            });
        });
        assert_eq!(made(&pool), [0, 3]);
        let next = pool.with(|| 0, |_| [found(&pool), found(&pool)]);
        assert_eq!(next, [0, 1], "where its seat is taken it looks further");
        assert_eq!(made(&pool), [0, 1, 3]);
        assert_eq!(found(&pool), 2);
    }

    #[test]
    fn work_that_panics_leaves_a_seat_that_is_used_again() {
        let pool = Pool::default();
        assert_eq!(found(&pool), 0);
        thread::scope(|scope| {
            let work = scope.spawn(|| pool.with(|| 0, |_| panic!("on purpose")));
            assert!(work.join().is_err());
        });
        assert_eq!(found(&pool), 1);
    }
}
