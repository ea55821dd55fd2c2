//! `abut._native`: converts and calls. It decides nothing about tokens.
//!
//! The doc comments of all that Python sees are its docstrings, in the style of Google's guide and in
//! Python's words. `_native.pyi` repeats them for editors, and a test compares the two.

#![allow(clippy::doc_markdown, reason = "docstrings name errors as Google's style does")]
#![allow(clippy::needless_pass_by_value, reason = "PyO3 extracts owned arguments")]

mod arrays;
mod batch;
mod columns;
mod convert;
mod detach;
mod error;
mod forks;
mod loaded;
mod pickle;
mod reply;
mod requests;
mod seam;
mod stitch;
mod tokenizer;
mod trajectory;

/// The Rust core. Ids are int64, masks uint8, logprobs float32.
// `arrays` borrows items of lists and reads arrays in place while no other thread runs Python, which a
// build without a GIL does not promise. PyO3's default would declare that this module needs no GIL.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::arrays::positions_of;
    #[pymodule_export]
    use crate::columns::{PyColumns, collate};
    #[pymodule_export]
    use crate::reply::{PyChoice, read_completions};
    #[pymodule_export]
    use crate::seam::{PyMerge, PySeam};
    #[pymodule_export]
    use crate::stitch::{PyStitched, PyTransition, stitch};
    #[pymodule_export]
    use crate::tokenizer::PyTokenizer;
    #[pymodule_export]
    use crate::trajectory::{PyTrajectory, PyTurn};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // The first array loads NumPy's own API; where Ctrl-C falls into that, the process panics.
        numpy::PyArray1::<i64>::zeros(module.py(), 0, false);
        crate::loaded::tokenizers(module.py())?;
        crate::forks::register(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
