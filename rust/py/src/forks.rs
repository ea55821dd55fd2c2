//! No thread of abut starts or ends while the process is forked.
//!
//! A forked child never gets back the locks and memory that another thread holds at that moment. When a
//! thread starts, glibc (seen in 2.36) may give it the stack of one that ended, and frees the memory
//! there before it notes that it is free: a child frees it again and is killed. When a thread ends,
//! Rust's standard library takes a lock, and the first thread of a child that ends waits for it.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};

/// Held while threads start or end, and while the process forks.
static LOCK: Mutex<()> = Mutex::new(());

thread_local! {
    /// The lock as held by a thread that forks, and by the only thread of its child.
    static FORKING: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Starts or ends threads while no thread forks through Python's `os`, which waits for it: `work` may
/// neither take long nor need the GIL.
pub fn while_nobody_forks<T>(work: impl FnOnce() -> T) -> T {
    let _lock = lock();
    work()
}

fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes Python wait for such work before it forks.
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
