//! Core errors to the classes of `abut.errors`.

use abut_core::{Error, SampleOf};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

macro_rules! error_class {
    ($function:ident, $name:literal) => {
        fn $function(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            CLASS.import(py, "abut.errors", $name)
        }
    };
}

error_class!(tokenizer_error, "TokenizerError");
error_class!(control_token_error, "ControlTokenError");
error_class!(trajectory_error, "TrajectoryError");
error_class!(seam_error, "SeamError");
error_class!(sampler_error, "SamplerError");

/// The Python exception for an error of the core.
pub fn to_py(error: &Error) -> PyErr {
    Python::attach(|py| {
        let class = match error {
            Error::LogprobCount { sample: SampleOf::Choice(_), .. }
            | Error::Logprob { sample: SampleOf::Choice(_), .. }
            | Error::Reply { .. }
            | Error::ReplyArray { .. }
            | Error::ReplyId { .. } => sampler_error(py),
            Error::Load { .. }
            | Error::NotDeterministic { .. }
            | Error::Override { .. }
            | Error::Encode { .. }
            | Error::CannotAvoid { .. }
            | Error::UnknownId { .. } => tokenizer_error(py),
            Error::ControlToken { .. } => control_token_error(py),
            Error::LogprobCount { .. }
            | Error::Logprob { .. }
            | Error::NoRequest { .. }
            | Error::ForkPoint { .. }
            | Error::NothingSampled { .. }
            | Error::ColumnLength { .. }
            | Error::ColumnValue { .. }
            | Error::EmptyPrompt { .. }
            | Error::NegativeId { .. } => trajectory_error(py),
            Error::Drift { .. } | Error::AmbiguousParent { .. } => seam_error(py),
        };
        class.map_or_else(|e| e, |class| PyErr::from_type(class.clone(), error.to_string()))
    })
}

/// A `TokenizerError` with this message.
pub fn tokenizer(message: String) -> PyErr {
    Python::attach(|py| {
        tokenizer_error(py).map_or_else(|e| e, |class| PyErr::from_type(class.clone(), message))
    })
}

/// A `TrajectoryError` with this message.
pub fn trajectory(message: String) -> PyErr {
    Python::attach(|py| {
        trajectory_error(py).map_or_else(|e| e, |class| PyErr::from_type(class.clone(), message))
    })
}

/// The error of one text of a batch: of the same class, and names the text.
pub fn in_text(py: Python<'_>, index: usize, error: &PyErr) -> PyErr {
    PyErr::from_type(error.get_type(py), format!("text {index}: {}", error.value(py)))
}
