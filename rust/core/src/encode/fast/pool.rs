//! What threads work with that encode at the same time, kept with the tokenizer.
//!
//! Invariant: nobody waits. In a forked process a lock that another thread held is held for ever.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// How many threads find a thing that stays. One more gets one that is thrown away.
const PLACES: usize = 64;

thread_local! {
    static FIRST_PLACE: Cell<usize> = const { Cell::new(0) };
}

/// Has this thread look for what it works with at a place of its own first. Threads that encode side
/// by side do so: one that found what another one used a moment ago would have none of it in the
/// caches of its core.
pub fn look_first_at(place: usize) {
    FIRST_PLACE.set(place % PLACES);
}

/// A thing for each thread that works at the same time, made when it is first asked for. They go with
/// the pool, where thread-locals would stay with every thread that once worked.
///
/// Who works holds the lock of a place. One lock around all idle things, as it was before, was often
/// held where texts are short, and whoever found it so made a new thing: eight thousand texts of 100
/// bytes on two cores took twice the processor's time, and left 100 MB of them.
#[derive(Debug)]
pub(super) struct Pool<T>(Box<[Mutex<Option<T>>]>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self((0..PLACES).map(|_| Mutex::default()).collect())
    }
}

impl<T> Pool<T> {
    /// Lends one to `work`.
    pub fn with<R>(&self, make: impl FnOnce() -> T, work: impl FnOnce(&mut T) -> R) -> R {
        let (mut place, mut none) = (self.free(), None);
        work(place.as_deref_mut().unwrap_or(&mut none).get_or_insert_with(make))
    }

    fn free(&self) -> Option<MutexGuard<'_, Option<T>>> {
        let first = FIRST_PLACE.get();
        let places = self.0[first..].iter().chain(&self.0[..first]);
        places.map(Mutex::try_lock).find_map(|lock| match lock {
            Ok(place) => Some(place),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// What a thread finds; it leaves one more.
    fn found(pool: &Pool<u32>) -> u32 {
        pool.with(|| 0, |count| std::mem::replace(count, *count + 1))
    }

    fn made(pool: &Pool<u32>) -> Vec<usize> {
        let is_made = |place: &Mutex<Option<u32>>| place.lock().expect("idle").is_some();
        (0..PLACES).filter(|&place| is_made(&pool.0[place])).collect()
    }

    #[test]
    fn a_pool_never_waits_for_who_holds_its_locks() {
        let pool = Pool::default();
        let held: Vec<_> =
            pool.0.iter().map(|place| place.lock().expect("nobody has it")).collect();
        assert_eq!([found(&pool), found(&pool)], [0, 0]);
        assert!(held.iter().all(|place| place.is_none()));
    }

    #[test]
    fn a_thread_finds_what_it_used_before_and_another_one_has_its_own() {
        let pool = Pool::default();
        assert_eq!([found(&pool), found(&pool)], [0, 1]);
        thread::scope(|scope| {
            scope.spawn(|| {
                look_first_at(PLACES + 3);
                assert_eq!(found(&pool), 0);
            });
        });
        assert_eq!(made(&pool), [0, 3]);
        let next = pool.with(|| 0, |_| [found(&pool), found(&pool)]);
        assert_eq!(next, [0, 1], "where its place is taken it looks further");
        assert_eq!(made(&pool), [0, 1, 3]);
        assert_eq!(found(&pool), 2);
    }

    #[test]
    fn work_that_panics_leaves_a_place_that_is_used_again() {
        let pool = Pool::default();
        assert_eq!(found(&pool), 0);
        thread::scope(|scope| {
            let work = scope.spawn(|| pool.with(|| 0, |_| panic!("on purpose")));
            assert!(work.join().is_err());
        });
        assert_eq!(found(&pool), 1);
    }
}
