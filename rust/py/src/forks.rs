//! No thread of ours starts while the process is forked.
//!
//! glibc (seen in 2.36) may hand a new thread the stack of one that ended, and frees what that one kept
//! there before it notes that nothing stands there any more. A child that was forked in between frees it
//! once more when it starts a thread itself, and is killed: "double free or corruption".

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};

/// Held by who starts a thread, and by who forks.
static STARTING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Of a thread that forks, and of the only thread that its child has.
    static FORKING: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Starts a thread, while nobody forks through Python's `os`.
pub fn starting<T>(start: impl FnOnce() -> T) -> T {
    let _lock = lock();
    start()
}

fn lock() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has Python wait for threads that are about to start before it forks. To start one takes
/// microseconds and needs no GIL.
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
