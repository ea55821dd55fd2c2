//! `abut._native`: converts and calls. It decides nothing about tokens.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 extracts owned arguments")]

mod arrays;
mod batch;
mod columns;
mod convert;
mod detach;
mod error;
mod reply;
mod requests;
mod seam;
mod stitch;
mod tokenizer;
mod trajectory;

#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

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
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
