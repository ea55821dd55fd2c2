//! `abut.Columns` and `abut.collate`.

use abut_core::{Columns, Row};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::convert::{int64_in, logprobs_in};
use crate::error;

#[pyclass(name = "Columns", module = "abut", frozen)]
pub struct PyColumns {
    #[pyo3(get)]
    prompt_ids: Py<PyArray1<i64>>,
    #[pyo3(get)]
    completion_ids: Py<PyArray1<i64>>,
    #[pyo3(get)]
    logprobs: Py<PyArray1<f32>>,
    #[pyo3(get)]
    env_mask: Py<PyArray1<u8>>,
}

impl PyColumns {
    pub fn from_core(py: Python<'_>, columns: Columns) -> Self {
        Self {
            prompt_ids: PyArray1::from_vec(py, columns.prompt_ids).unbind(),
            completion_ids: PyArray1::from_vec(py, columns.completion_ids).unbind(),
            logprobs: PyArray1::from_vec(py, columns.logprobs).unbind(),
            env_mask: PyArray1::from_vec(py, columns.env_mask).unbind(),
        }
    }
}

/// The arrays of one row, borrowed for as long as this lives.
struct Borrowed<'py> {
    prompt_ids: PyReadonlyArray1<'py, i64>,
    completion_ids: PyReadonlyArray1<'py, i64>,
    logprobs: PyReadonlyArray1<'py, f32>,
    env_mask: PyReadonlyArray1<'py, u8>,
}

impl<'py> Borrowed<'py> {
    fn new(py: Python<'py>, columns: &PyColumns) -> PyResult<Self> {
        Ok(Self {
            prompt_ids: columns.prompt_ids.bind(py).try_readonly()?,
            completion_ids: columns.completion_ids.bind(py).try_readonly()?,
            logprobs: columns.logprobs.bind(py).try_readonly()?,
            env_mask: columns.env_mask.bind(py).try_readonly()?,
        })
    }

    fn row(&self) -> PyResult<Row<'_>> {
        Ok(Row {
            prompt_ids: self.prompt_ids.as_slice()?,
            completion_ids: self.completion_ids.as_slice()?,
            logprobs: self.logprobs.as_slice()?,
            env_mask: self.env_mask.as_slice()?,
        })
    }
}

#[pymethods]
impl PyColumns {
    #[new]
    #[pyo3(signature = (*, prompt_ids, completion_ids, logprobs, env_mask))]
    fn new(
        py: Python<'_>,
        prompt_ids: &Bound<'_, PyAny>,
        completion_ids: &Bound<'_, PyAny>,
        logprobs: &Bound<'_, PyAny>,
        env_mask: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        // A value that is no byte becomes one that is no mask either, which the core refuses.
        let mask =
            int64_in(env_mask)?.into_iter().map(|mask| u8::try_from(mask).unwrap_or(u8::MAX));
        let columns = Self {
            prompt_ids: not_negative("prompt_ids", int64_in(prompt_ids)?)?.to_pyarray(py).unbind(),
            completion_ids: not_negative("completion_ids", int64_in(completion_ids)?)?
                .to_pyarray(py)
                .unbind(),
            logprobs: logprobs_in(logprobs)?.to_pyarray(py).unbind(),
            env_mask: PyArray1::from_iter(py, mask).unbind(),
        };
        Borrowed::new(py, &columns)?.row()?.check(0).map_err(|e| error::to_py(&e))?;
        Ok(columns)
    }

    /// For pickle: rows travel between processes.
    fn __getnewargs_ex__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let arguments = PyDict::new(py);
        arguments.set_item("prompt_ids", &self.prompt_ids)?;
        arguments.set_item("completion_ids", &self.completion_ids)?;
        arguments.set_item("logprobs", &self.logprobs)?;
        arguments.set_item("env_mask", &self.env_mask)?;
        Ok((PyTuple::empty(py), arguments))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "Columns({} prompt tokens, {} completion tokens)",
            self.prompt_ids.bind(py).len(),
            self.completion_ids.bind(py).len()
        )
    }
}

fn not_negative(name: &str, ids: Vec<i64>) -> PyResult<Vec<i64>> {
    match ids.iter().position(|&id| id < 0) {
        None => Ok(ids),
        Some(index) => Err(error::trajectory(format!(
            "{name}[{index}] is {}: an id is not negative\nhint: leave padding out of a row",
            ids[index]
        ))),
    }
}

#[pyfunction]
#[pyo3(signature = (columns, *, pad_id))]
pub fn collate<'py>(
    py: Python<'py>,
    columns: Vec<Bound<'py, PyColumns>>,
    pad_id: i64,
) -> PyResult<Bound<'py, PyDict>> {
    let borrowed = columns
        .iter()
        .map(|columns| Borrowed::new(py, columns.get()))
        .collect::<PyResult<Vec<_>>>()?;
    let rows = borrowed.iter().map(Borrowed::row).collect::<PyResult<Vec<_>>>()?;
    let batch = py.detach(|| abut_core::collate(&rows, pad_id)).map_err(|e| error::to_py(&e))?;
    let prompts = [batch.rows, batch.prompt_len];
    let completions = [batch.rows, batch.completion_len];
    let dict = PyDict::new(py);
    dict.set_item("prompt_ids", PyArray1::from_vec(py, batch.prompt_ids).reshape(prompts)?)?;
    dict.set_item("prompt_mask", PyArray1::from_vec(py, batch.prompt_mask).reshape(prompts)?)?;
    dict.set_item(
        "completion_ids",
        PyArray1::from_vec(py, batch.completion_ids).reshape(completions)?,
    )?;
    dict.set_item(
        "completion_mask",
        PyArray1::from_vec(py, batch.completion_mask).reshape(completions)?,
    )?;
    dict.set_item("logprobs", PyArray1::from_vec(py, batch.logprobs).reshape(completions)?)?;
    dict.set_item("env_mask", PyArray1::from_vec(py, batch.env_mask).reshape(completions)?)?;
    Ok(dict)
}
