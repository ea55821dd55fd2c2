//! No thread of ours starts or ends while the process is forked.
//!
//! What a thread holds in that moment a forked child has for ever. Where one starts, glibc (seen in
//! 2.36) may hand it the stack of one that ended, and frees what that one kept there before it notes that
//! nothing stands there any more: a child frees it once more, and is killed. Where one ends, Rust's
//! standard library takes a lock, and the first thread of a child that ends waits for it.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};

/// Held by whose threads start or end, and by who forks.
static LOCK: Mutex<()> = Mutex::new(());

thread_local! {
    /// Of a thread that forks, and of the only thread that its child has.
    static FORKING: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Starts or ends threads while nobody forks through Python's `os`, which waits for it: `work` may
/// neither take long nor need the GIL.
pub fn while_nobody_forks<T>(work: impl FnOnce() -> T) -> T {
    let _lock = lock();
    work()
}

fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has Python wait for such work before it forks.
pub fn register(py: Python<'_>) -> PyResult<()> {
    let os = py.import("os")?;
    if !os.hasattr("fork")? {
        return Ok(());
    }
    let begin = PyCFunction::new_closure(py, None, None, |_, _| FORKING.set(Some(lock())))?;
    let end = PyCFunction::new_closure(py, None, None, |_, _| FORKING.set(None))?;
    let hooks = PyDict::new(py);
    hooks.set_item("before", begin)?;
    hooks.set_item("after_in_parent", &end)?;
    hooks.set_item("after_in_child", &end)?;
    os.call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}
